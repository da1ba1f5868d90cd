"""Bad arguments are refused with the right error before anything is written."""

import dataclasses
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Batch, Item, Message, Session, Verdict, errors
from ackflow.errors import (
    AckflowError,
    GroupNotFound,
    InvalidArgument,
    PayloadTooLarge,
    UnknownOption,
)

NAN, INF = float("nan"), float("inf")
NAIVE = datetime(2023, 11, 14, 12, 0, 0)
SURROGATE = "\ud800"
MIB = 1024 * 1024


@dataclasses.dataclass
class Reading:
    value: float


class Scene:
    """A queue in use: something leased, waiting, dead, delayed and unread, and a value."""

    def __init__(self, q: Session) -> None:
        self.q: Any = q
        self.ids = q.push("orders", list(range(6)), partition="eu")
        q.push("orders", "later", delay=60)
        q.pop("orders", group="g")[0].reject("bad")
        q.pop("orders", group="g")[0].nack(delay=60)
        self.batch: Batch[Message] = q.pop("orders", group="g", batch=2)
        self.message = self.batch[0]
        self.stage = q.stage("job", 1, "out", 1)
        q.transaction().put("k", 1).commit()

    def picture(self) -> object:
        """Everything that can be seen."""
        q = self.q
        names = [stats.name for stats in q.queues()]
        return (
            q.queues(),
            q.values(),
            [(q.partitions(n), q.leases(n), q.dead_letters(n), q.browse(n)) for n in names],
            [m.state for m in q.browse("orders", group="g").items],
        )


@pytest.fixture
def s(q: Session) -> Scene:
    return Scene(q)


Call = Callable[[Scene], object]
CallWith = Callable[[Scene, Any], object]


def refused(s: Scene, call: Call, error: type[AckflowError]) -> None:
    before = s.picture()
    with pytest.raises(AckflowError) as raised:
        call(s)
    assert type(raised.value) is error
    assert raised.value.code == error.code
    assert raised.value.message[-1] != ":"
    assert s.picture() == before


Rows = dict[str, Call]


def all_refused(s: Scene, rows: Rows, error: type[AckflowError] = InvalidArgument) -> None:
    """Check every row of a table, and name all that fail."""
    failed = []
    for name, call in rows.items():
        try:
            refused(s, call, error)
        except (Exception, pytest.fail.Exception) as problem:
            failed.append(f"{name}: {problem!r}")
    assert not failed, "\n".join(failed)


def each_with(calls: dict[str, CallWith], values: Iterable[object]) -> Rows:
    """A row for every call with every value."""
    return {
        f"{name}, {value!r:.60}": partial(_call_with, call, value)
        for name, call in calls.items()
        for value in values
    }


def _call_with(call: CallWith, value: object, s: Scene) -> object:
    return call(s, value)


# Long tables need one store only: the session refuses these arguments before it calls a store.
in_memory = pytest.mark.parametrize("open_session", ["memory"], indirect=True)


# names

BAD_NAMES = {
    "empty": "",
    "a line break": "a\nb",
    "a null": "a\x00b",
    "a control character": "a\x1b[31m",
    "a tab": "a\tb",
    "a delete": "a\x7f",
    "half a surrogate pair": SURROGATE,
    "256 bytes": "x" * 256,
    "256 bytes in 128 letters": "é" * 128,
    "None": None,
    "a number": 1,
    "bytes": b"orders",
    "a list": ["orders"],
}
NAMED: dict[str, CallWith] = {
    "queue of push": lambda s, n: s.q.push(n, 1),
    "partition of push": lambda s, n: s.q.push("orders", 1, partition=n),
    "queue of pop": lambda s, n: s.q.pop(n),
    "group of pop": lambda s, n: s.q.pop("orders", group=n),
    "queue of configure": lambda s, n: s.q.configure(n),
    "queue of group": lambda s, n: s.q.group(n, "g"),
    "group of group": lambda s, n: s.q.group("orders", n),
    "producer of stage": lambda s, n: s.q.stage(n, 1, "out", 1),
    "queue of stage": lambda s, n: s.q.stage("job", 1, n, 1),
    "producer of publish": lambda s, n: s.q.publish(n, 1, []),
    "key of put": lambda s, n: s.q.transaction().put(n, 1),
    "key of delete": lambda s, n: s.q.transaction().delete(n),
    "queue of a push in a transaction": lambda s, n: s.q.transaction().push(n, 1),
    "key of value": lambda s, n: s.q.value(n),
}


@in_memory
def test_a_bad_name_is_refused(s: Scene) -> None:
    all_refused(s, each_with(NAMED, BAD_NAMES.values()))


OPTIONAL_NAMES: dict[str, CallWith] = {
    "key of push": lambda s, n: s.q.push("orders", 1, key=n),
    "key of transaction": lambda s, n: s.q.transaction(n).put("k", 2).commit(),
    "consumer of pop": lambda s, n: s.q.pop("orders", consumer=n),
    "partition of pop": lambda s, n: s.q.pop("orders", partition=n),
    "partition of an item": lambda s, n: s.q.push("orders", [Item(data=1, partition=n)]),
    "transaction id": lambda s, n: s.q.push("orders", [Item(data=1, transaction_id=n)]),
    "target of redrive": lambda s, n: s.q.redrive("orders", to=n),
}


@in_memory
def test_a_bad_name_is_refused_where_a_name_is_optional(s: Scene) -> None:
    all_refused(s, each_with(OPTIONAL_NAMES, ["", "a\nb", "x" * 256, 1, b"b"]))


LOOKED_UP: dict[str, CallWith] = {
    "pause": lambda s, n: s.q.pause(n),
    "resume": lambda s, n: s.q.resume(n),
    "seek": lambda s, n: s.q.seek(n, "g", to="end"),
    "purge": lambda s, n: s.q.purge(n),
    "delete_queue": lambda s, n: s.q.delete_queue(n),
    "delete_group": lambda s, n: s.q.delete_group(n, "g"),
    "delete_message": lambda s, n: s.q.delete_message(n, s.ids[4]),
    "redrive": lambda s, n: s.q.redrive(n),
    "purge_dead": lambda s, n: s.q.purge_dead(n),
    "dead_letters": lambda s, n: s.q.dead_letters(n),
    "dead_summary": lambda s, n: s.q.dead_summary(n),
    "queue_stats": lambda s, n: s.q.queue_stats(n),
    "browse": lambda s, n: s.q.browse(n),
    "why": lambda s, n: s.q.why(n, s.ids[4]),
}


@pytest.mark.every_store
def test_a_queue_name_of_another_type_is_refused(s: Scene) -> None:
    all_refused(s, each_with(LOOKED_UP, [1, None, ["orders"]]))


EMPTY_GROUPS: dict[str, Call] = {
    "pause": lambda s: s.q.pause("orders", ""),
    "seek": lambda s: s.q.seek("orders", "", to="end"),
    "redrive": lambda s: s.q.redrive("orders", group=""),
    "purge_dead": lambda s: s.q.purge_dead("orders", group=""),
    "dead_letters": lambda s: s.q.dead_letters("orders", group=""),
    "dead_summary": lambda s: s.q.dead_summary("orders", ""),
    "browse": lambda s: s.q.browse("orders", group=""),
    "message": lambda s: s.q.message("orders", s.ids[4], group=""),
    "leases": lambda s: s.q.leases("orders", ""),
}


@pytest.mark.every_store
def test_an_empty_group_is_not_taken_for_all_groups(s: Scene) -> None:
    for name, call in EMPTY_GROUPS.items():
        before = s.picture()
        with pytest.raises((InvalidArgument, GroupNotFound)):
            call(s)
        assert s.picture() == before, name


# payloads

BAD_DATA: dict[str, object] = {
    "an object": object(),
    "a function": len,
    "a complex number": 1j,
    "a key that is no text": {(1, 2): 3},
    "NaN": NAN,
    "infinity": INF,
    "minus infinity": -INF,
    "NaN in a mapping": {"a": {"b": NAN}},
    "NaN in a tuple": {"a": (1, NAN)},
    "NaN in a dataclass": Reading(NAN),
    "NaN beside a large number": {"a": 10**30, "b": NAN},
    "infinity beside a large number": [10**30, INF],
    "an object beside a large number": [10**30, object()],
    "NaN beside null": [None, NAN],
    "half a surrogate pair": {"a": SURROGATE},
    "raw text that is no JSON": msgspec.Raw(b"{nonsense"),
}


@in_memory
def test_data_that_is_not_json_is_refused_with_the_whole_request(s: Scene) -> None:
    calls: dict[str, CallWith] = {
        "push": lambda s, data: s.q.push("new queue", [1, data, 2]),
        "item": lambda s, data: s.q.push("orders", [Item(data=1), Item(data=data)]),
        "transaction": lambda s, data: s.q.transaction().push("orders", [1, data]).commit(),
        "put": lambda s, data: s.q.transaction().put("k", data).commit(),
        "stage": lambda s, data: s.q.stage("job", 1, "out", [1, data]),
    }
    all_refused(s, each_with(calls, BAD_DATA.values()))


def test_null_is_json_and_nan_beside_it_is_found(q: Session) -> None:
    q.push("orders", [None, {"a": None}, [None, 1.5], "nan", "null"])
    assert [m.data for m in q.pop("orders", batch=9)] == [
        None, {"a": None}, [None, 1.5], "nan", "null",
    ]  # fmt: skip


@pytest.mark.every_store
@pytest.mark.parametrize(
    "data", [b"x" * (16 * MIB + 1), "x" * (16 * MIB - 1)], ids=["bytes", "text"]
)
def test_a_payload_over_16_mib_is_refused_with_all_that_came_with_it(
    s: Scene, data: object
) -> None:
    refused(s, lambda s: s.q.push("orders", [1, data]), PayloadTooLarge)
    refused(s, lambda s: s.q.transaction().push("orders", data).commit(), PayloadTooLarge)
    refused(s, lambda s: s.q.stage("job", 1, "out", data), PayloadTooLarge)


def test_headers_over_a_mib_are_refused_with_all_that_came_with_it(s: Scene) -> None:
    large = Item(data=1, headers={"a": "x" * MIB})
    refused(s, lambda s: s.q.push("orders", [1, large]), PayloadTooLarge)


def test_a_payload_of_16_mib_is_taken(q: Session) -> None:
    q.push("orders", b"x" * (16 * MIB))
    assert q.queue_stats("orders").bytes == 16 * MIB


def test_a_value_over_one_mib_is_refused(s: Scene) -> None:
    refused(s, lambda s: s.q.transaction().put("k", "x" * MIB).commit(), InvalidArgument)
    s.q.transaction().put("k", "x" * (MIB - 2)).commit()
    assert len(s.q.value("k").data) == MIB - 2


BAD_HEADERS: list[object] = [
    5, "a=b", ["a"], {"a": 1}, {1: "a"}, {"a": None}, {"a": SURROGATE}, {SURROGATE: "a"},
]  # fmt: skip


@pytest.mark.every_store
def test_bad_headers_are_refused(s: Scene) -> None:
    def push(s: Scene, headers: Any) -> object:
        return s.q.push("orders", [1, Item(data=2, headers=headers)])

    all_refused(s, each_with({"push": push}, BAD_HEADERS))


# numbers, times, choices

NOT_WHOLE: list[object] = [-1, 1.5, "1", None, True, NAN]
NOT_SECONDS: list[object] = [-1, -0.001, "1", True, NAN, INF, [1], 1e11, 10**400]

NUMBERS: dict[str, tuple[CallWith, list[object]]] = {
    "priority": (lambda s, v: s.q.push("orders", 1, priority=v), [*NOT_WHOLE, 2**31]),
    "priority of an item": (
        lambda s, v: s.q.push("orders", [Item(data=1, priority=v)]), [-1, 2**31, 1.5, "1", True],
    ),
    "delay": (lambda s, v: s.q.push("orders", 1, delay=v), NOT_SECONDS),
    "delay of an item": (lambda s, v: s.q.push("orders", [Item(data=1, delay=v)]), NOT_SECONDS),
    "delay of nack": (lambda s, v: s.message.nack(delay=v), NOT_SECONDS),
    "delay of nack of many": (lambda s, v: s.q.nack(s.batch, delay=v), NOT_SECONDS),
    "delay of requeue": (lambda s, v: s.message.requeue(delay=v), NOT_SECONDS),
    "delay of nack in a transaction": (
        lambda s, v: s.q.transaction().nack(s.message, delay=v).commit(), NOT_SECONDS,
    ),
    "batch": (lambda s, v: s.q.pop("orders", batch=v), [0, -1, 100_001, 1.5, "1", True]),
    "wait": (lambda s, v: s.q.pop("orders", wait=v), NOT_SECONDS),
    "lease_seconds": (lambda s, v: s.q.pop("orders", lease_seconds=v), [*NOT_SECONDS, 0]),
    "partitions": (lambda s, v: s.q.pop("orders", partitions=v), [0, -1, 10_001, 1.5, "1"]),
    "extend": (lambda s, v: s.message.extend(v), [*NOT_SECONDS, 0]),
    "batch of stage": (lambda s, v: s.q.stage("job", v, "out", 1), NOT_WHOLE),
    "batch of publish": (lambda s, v: s.q.publish("job", v, []), NOT_WHOLE),
    "sequence": (lambda s, v: s.q.seek("orders", "g", sequence=v), [-1, 1.5, "1", True, 1 << 48]),
    "expect": (lambda s, v: s.q.transaction().put("k", 2, expect=v).commit(), [-1, 1.5, "1", True]),
    "limit of browse": (lambda s, v: s.q.browse("orders", limit=v), [0, *NOT_WHOLE, 10_001]),
    "seconds of browse": (lambda s, v: s.q.browse("orders", seconds=v), [*NOT_SECONDS, None]),
    "limit of dead letters": (lambda s, v: s.q.dead_letters("orders", limit=v), [0, *NOT_WHOLE]),
    "offset": (lambda s, v: s.q.dead_letters("orders", offset=v), NOT_WHOLE),
    "limit of values": (lambda s, v: s.q.values(limit=v), NOT_WHOLE),
    "limit of redrive": (lambda s, v: s.q.redrive("orders", limit=v), [-1, 1.5, "1", True]),
}  # fmt: skip


@in_memory
def test_a_bad_number_is_refused(s: Scene) -> None:
    for name, (call, values) in NUMBERS.items():
        all_refused(s, each_with({name: call}, values))


TIMES: dict[str, CallWith] = {
    "seek": lambda s, t: s.q.seek("orders", "g", time=t),
    "start of a group": lambda s, t: s.q.group("orders", "new", start=t),
    "since of browse": lambda s, t: s.q.browse("orders", since=t),
    "until of search": lambda s, t: s.q.search("orders", "1", until=t),
    "since of dead letters": lambda s, t: s.q.dead_letters("orders", since=t),
    "until of redrive": lambda s, t: s.q.redrive("orders", until=t),
    "since of purge_dead": lambda s, t: s.q.purge_dead("orders", since=t),
}


@in_memory
def test_a_bad_time_is_refused(s: Scene) -> None:
    times = [NAIVE, "2023-11-14", -1, NAN, INF, True, NAIVE.date()]
    all_refused(s, each_with(TIMES, times))


def test_the_error_for_a_time_without_zone_says_what_to_do(s: Scene) -> None:
    with pytest.raises(InvalidArgument, match=r"time zone; use datetime\.now\(timezone\.utc\)"):
        s.q.seek("orders", "g", time=NAIVE)


QUEUE_OPTIONS: list[tuple[str, list[object]]] = [
    ("lease_seconds", [0, -1, None, "5", NAN, True]),
    ("retry_limit", [0, -2, 1.5, "3", True]),
    ("max_deliver", [0, -2, 1.5, "3", True]),
    ("backoff", [5, "1,2", [-1], ["1"], [NAN], None]),
    ("history_seconds", [0, 299.9, None, "600"]),
    ("delay_seconds", [-1, None, "1"]),
    ("max_wait_seconds", [0, -1, "1"]),
    ("retention_seconds", [0, -1, "1"]),
    ("keep_seconds", [-1, "1", INF]),
    ("max_size", [0, -2, 1.5, "1", True]),
    ("ttl_seconds", [0, -1, "1"]),
    ("window_seconds", [-1, None, "1"]),
    ("priority", [1.5, None, "1", True]),
    ("encrypted", [None, 1, "yes"]),
    ("dedup_seconds", [-1, "1", INF]),
    ("namespace", [5, b"x", SURROGATE]),
    ("task", [5]),
]
GROUP_OPTIONS: list[tuple[str, list[object]]] = [
    ("ordering", ["sorted", None, 1]),
    ("policy", ["some", None]),
    ("lease_seconds", [0, -1, None]),
    ("retry_limit", [0, -2, "3"]),
    ("backoff", [5, [INF]]),
    ("max_ack_pending", [0, -2, 1.5]),
    ("start", ["yesterday", NAIVE, None, -5]),
]


@in_memory
def test_a_bad_option_of_a_queue_is_refused(s: Scene) -> None:
    for option, values in QUEUE_OPTIONS:
        calls: dict[str, CallWith] = {
            f"{option} of {queue}": lambda s, v, queue=queue, option=option: s.q.configure(
                queue, **{"keep_seconds": 5, option: v}
            )
            for queue in ("orders", "new")
        }
        all_refused(s, each_with(calls, values))


@in_memory
def test_a_bad_option_of_a_group_is_refused(s: Scene) -> None:
    for option, values in GROUP_OPTIONS:
        calls: dict[str, CallWith] = {
            f"{option} of {group}": lambda s, v, group=group, option=option: s.q.group(
                "orders", group, **{option: v}
            )
            for group in ("g", "new")
        }
        all_refused(s, each_with(calls, values))


UNKNOWN_OPTIONS: Rows = {
    "queue": lambda s: s.q.configure("orders", keep_seconds=5, max_ack_pending=5),
    "group": lambda s: s.q.group("orders", "g", lease_seconds=5, keep_seconds=5),
    "a typing error": lambda s: s.q.group("orders", "new", lease_secs=5),
}


@pytest.mark.every_store
def test_an_unknown_option_is_refused(s: Scene) -> None:
    all_refused(s, UNKNOWN_OPTIONS, UnknownOption)


# ids, tokens, pages

BAD_IDS: list[object] = [
    "", "17", "not an id", "6fa459ea-ee8a-3ca4-894e-db77e160355e", None, 17, b"x", ["x"],
]  # fmt: skip
BAD_TOKENS: list[object] = ["", "short", "AAAAAAAAAAB", "ÄAAAAAAAAAA", "x" * 36, 17, b"x"]
WITH_ID: dict[str, CallWith] = {
    "message": lambda s, id: s.q.message("orders", id),
    "why": lambda s, id: s.q.why("orders", id, group="g"),
    "delete": lambda s, id: s.q.delete_message("orders", id),
    "ack": lambda s, id: s.q.lease(s.batch.token).ack(id),
}
WITH_TOKEN: dict[str, CallWith] = {
    "read": lambda s, token: s.q.read(token),
    "lease": lambda s, token: s.q.lease(token),
    "pop": lambda s, token: s.q.pop("orders", token=token),
}


@in_memory
def test_a_bad_message_id_is_refused(s: Scene) -> None:
    all_refused(s, each_with(WITH_ID, BAD_IDS))


@in_memory
def test_a_bad_token_is_refused(s: Scene) -> None:
    all_refused(s, each_with(WITH_TOKEN, BAD_TOKENS))


def test_a_message_id_given_as_a_token_is_refused(s: Scene) -> None:
    refused(s, lambda s: s.q.pop("orders", token=s.ids[1]), InvalidArgument)
    refused(s, lambda s: s.q.read(s.ids[1]), InvalidArgument)


def test_a_bad_page_token_of_dead_letters_is_refused(s: Scene) -> None:
    calls: dict[str, CallWith] = {
        "dead_letters": lambda s, after: s.q.dead_letters("orders", after=after)
    }
    all_refused(s, each_with(calls, ["", "x", "1.2", "-1", "1e3", "9" * 40, 5, b"1"]))


def test_a_bad_page_token_of_messages_is_refused(s: Scene) -> None:
    calls: dict[str, CallWith] = {
        "browse": lambda s, after: s.q.browse("orders", after=after),
        "search": lambda s, after: s.q.search("orders", "1", after=after),
    }
    all_refused(s, each_with(calls, ["", "x", "1", "1.x", "1.2.3", "-1.0", "1.-1", 5, b"1.1"]))


# everything else

OTHERS: dict[str, Call] = {
    "seek to nothing": lambda s: s.q.seek("orders", "g"),
    "seek to two places": lambda s: s.q.seek("orders", "g", to="end", sequence=1),
    "seek to the middle": lambda s: s.q.seek("orders", "g", to="middle"),
    "dialect of pop": lambda s: s.q.pop("orders", group="new", dialect="kafka"),
    "dialect of group": lambda s: s.q.group("orders", "new", dialect="kafka"),
    "unknown verb": lambda s: s.q.settle([(s.message, "explode")]),
    "unknown verdict": lambda s: s.q.settle([(s.message, Verdict("explode"))]),  # type: ignore[arg-type]
    "unknown verdict in a transaction": lambda s: (
        s.q.transaction().settle(s.message, Verdict("explode")).commit()  # type: ignore[arg-type]
    ),
    "reason of nack": lambda s: s.message.nack(5),  # type: ignore[arg-type]
    "reason of reject": lambda s: s.q.reject(s.batch, b"bytes"),
    "reason that cannot be written": lambda s: s.message.reject(SURROGATE),
    "reason in a transaction": lambda s: s.q.transaction().reject(s.message, 5).commit(),
    "ack of text": lambda s: s.q.ack("orders"),
    "ack of a list of numbers": lambda s: s.q.ack([s.message, 1]),
    "ack of nothing": lambda s: s.q.ack(None),
    "ack of an id in a transaction": lambda s: s.q.transaction().ack(s.message.id),
    "settle of an id": lambda s: s.q.settle([(s.message.id, "ack")]),
    "settle of nothing": lambda s: s.q.settle(None),
    "settle without a verdict": lambda s: s.q.settle([s.message]),
    "settle of a number": lambda s: s.q.settle([1]),
    "settle with a number": lambda s: s.q.settle([(s.message, 1)]),
    "unknown verb in a transaction": lambda s: s.q.transaction().settle(s.message, "explode"),
    "follow after a number": lambda s: s.q.follow("orders", after=5),
    "extend of an id": lambda s: s.q.extend([s.message.id]),
    "follow after texts": lambda s: s.q.follow("orders", after={1: "x"}),
    "search for nothing": lambda s: s.q.search("orders", None),
    "a kind of death there is not": lambda s: s.q.dead_letters("orders", kind="typo"),
    "redrive of a kind there is not": lambda s: s.q.redrive("orders", kind="typo"),
    "auto_ack as a word": lambda s: s.q.pop("orders", group="g", auto_ack="no"),
    "up_to as a word": lambda s: s.message.ack(up_to="no"),
    "confirm as a number": lambda s: s.q.ack(s.batch, confirm=1),
    "rest as a word": lambda s: s.message.nack(rest="yes"),
    "namespace of two lines": lambda s: s.q.configure("orders", namespace="a\nb"),
    "backup into memory": lambda s: s.q.backup(":memory:"),
    "search for a number": lambda s: s.q.search("orders", 5),
    "search for half a letter": lambda s: s.q.search("orders", SURROGATE),
    "prefix of values": lambda s: s.q.values(5),
    "ids of redrive": lambda s: s.q.redrive("orders", ids=["x"]),
    "ids of purge_dead": lambda s: s.q.purge_dead("orders", ids=5),
    "stages of publish": lambda s: s.q.publish("job", 1, 5),
}


@pytest.mark.every_store
def test_every_other_argument_of_a_wrong_type_is_refused(s: Scene) -> None:
    all_refused(s, OTHERS)


def test_a_bad_part_of_a_transaction_is_refused_when_it_is_added(s: Scene) -> None:
    t = s.q.transaction().ack(s.message)
    with pytest.raises(InvalidArgument):
        t.push("orders", NAN)
    t.commit()
    assert s.q.group_stats("orders", "g").counts.done == 1


@pytest.mark.parametrize(
    "options",
    [
        {"may_lose": "some"},
        {"may_lose": []},
        {"consumer": ""},
        {"consumer": "a\nb"},
        {"consumer": 5},
    ],
)
def test_a_session_that_is_refused_leaves_no_file(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        ackflow.connect(tmp_path / "new.db", upkeep=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_session_says_so(q: Session) -> None:
    q.close()
    q.close()
    calls: list[Callable[[], object]] = [
        lambda: q.push("orders", 1),
        lambda: q.pop("orders"),
        lambda: q.queues(),
        lambda: q.value("k"),
        lambda: q.upkeep(),
    ]
    for call in calls:
        with pytest.raises(errors.SessionClosed):
            call()


@pytest.mark.parametrize(
    "place",
    ["", "  ", None, 5, b"bytes.db", "postgresql://host/db?schema=A", "ftp://x", SURROGATE],
)
def test_an_invalid_database_address_is_refused_and_leaves_nothing(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument):
        ackflow.connect(place)
    assert list(tmp_path.iterdir()) == []


def test_as_many_messages_at_once_are_taken_everywhere(q: Session) -> None:
    q.push("q", list(range(25_000)))
    assert len(q.pop("q", batch=25_000)) == 25_000
