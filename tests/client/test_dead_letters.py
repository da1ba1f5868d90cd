"""Dead letters from a session: alerts, causes and redrive."""

import asyncio
import logging
import threading
from typing import Any

import msgspec
import pytest

from ackflow import Item, Session, VirtualClock, aio
from ackflow.errors import InvalidArgument, QueueNotFound, Unavailable
from ackflow.options import QUEUE_MODE
from ackflow.session import dead_letters, encoding
from ackflow.session.dead_letters import Alert

from .conftest import Run
from .waiting import until

HOURS = 3600.0


def bury(q: Session, *data: Any, reason: str | None = "bad", group: str = QUEUE_MODE) -> None:
    """Push messages and let them die in one group, in their order."""
    q.push("orders", list(data))
    q.reject(q.pop("orders", group=group, batch=10_000), reason)


def read(q: Session, group: str = QUEUE_MODE) -> list[tuple[str, Any]]:
    batch = q.pop("orders", group=group, batch=10_000)
    return [(message.transaction_id, message.data) for message in batch]


def crash(*_: Any, **__: Any) -> int:
    raise Unavailable


def test_the_numbers_are_those_of_the_document() -> None:
    assert dead_letters.ABOVE == 100
    assert dead_letters.REPROCESSED == "reprocess-"


# what they died of


def test_the_distribution_counts_the_text_before_the_colon_most_first(q: Session) -> None:
    for reason in ("Timeout: 5 s", "Invalid: no id", "Timeout: 9 s", "Timeout", "a b: c: d"):
        bury(q, 1, reason=reason)
    found = q.dead_distribution("orders")
    assert found == {"Timeout": 3, "Invalid": 1, "a b": 1}
    assert next(iter(found)) == "Timeout"


def test_the_distribution_takes_groups_and_kinds_together_unless_one_is_asked_for(
    q: Session,
) -> None:
    bury(q, 1, reason="Timeout: a", group="one")
    q.reject(q.pop("orders", group="two"), "Timeout: b")
    bury(q, 2, reason="Timeout: c", group="one")
    q.dead_letter(q.pop("orders", group="two"), "Timeout: d")
    assert q.dead_distribution("orders") == {"Timeout": 4}
    assert q.dead_distribution("orders", "two") == {"Timeout": 2}


def test_what_died_without_a_word_is_counted_under_none(q: Session) -> None:
    bury(q, 1, 2, reason=None)
    assert q.dead_distribution("orders") == {"": 2}


def test_the_distribution_of_a_queue_that_is_not_there_is_refused(q: Session) -> None:
    with pytest.raises(QueueNotFound):
        q.dead_distribution("nowhere")


# another try


def test_reprocessing_pushes_again_under_new_ids_and_removes_the_dead_letters(q: Session) -> None:
    bury(q, Item(data={"id": 1}, transaction_id="a"), Item(data={"id": 2}, transaction_id="b"))
    assert q.reprocess("orders") == 2
    assert q.dead_letters("orders").total == 0
    assert read(q) == [("reprocess-a", {"id": 1}), ("reprocess-b", {"id": 2})]


def test_a_message_without_an_id_of_its_producer_is_reprocessed_under_its_own(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.reject(q.pop("orders"))
    q.reprocess("orders")
    assert read(q) == [(f"reprocess-{id}", 1)]


def test_a_reprocessed_message_is_the_old_one_in_all_but_its_id(q: Session) -> None:
    bury(q, Item(data=b"\x00\xff", partition="eu", priority=3, headers={"source": "web"}))
    q.reprocess("orders")
    (message,) = q.pop("orders")
    assert (message.data, message.partition, message.priority) == (b"\x00\xff", "eu", 3)
    assert message.headers == {"source": "web"}
    assert (message.deliveries, message.failures) == (1, 0)


def test_json_is_reprocessed_byte_for_byte(q: Session) -> None:
    raw = b'{"n":1.0,"big":123456789012345678901234567890}'
    bury(q, msgspec.Raw(raw))
    q.reprocess("orders")
    (message,) = q.pop("orders")
    assert message.raw == raw


def test_what_died_in_one_group_is_reprocessed_for_every_group(q: Session) -> None:
    q.push("orders", Item(data=1, transaction_id="a"))
    q.reject(q.pop("orders", group="one"))
    q.ack(q.pop("orders", group="two"))
    q.reprocess("orders")
    assert read(q, "one") == read(q, "two") == [("reprocess-a", 1)]


def test_what_died_in_two_groups_is_reprocessed_once(q: Session) -> None:
    q.push("orders", Item(data=1, transaction_id="a"))
    q.reject(q.pop("orders", group="one"))
    q.reject(q.pop("orders", group="two"))
    assert q.reprocess("orders") == 2
    assert read(q, "one") == read(q, "two") == [("reprocess-a", 1)]


def test_one_group_alone_can_be_reprocessed(q: Session) -> None:
    bury(q, 1, group="one")
    q.reject(q.pop("orders", group="two"))
    assert q.reprocess("orders", "one") == 1
    assert [letter.group for letter in q.dead_letters("orders").items] == ["two"]


def test_what_dies_again_is_reprocessed_again(q: Session) -> None:
    bury(q, Item(data=1, transaction_id="a"))
    q.reprocess("orders")
    q.reject(q.pop("orders"))
    q.reprocess("orders")
    assert read(q) == [("reprocess-reprocess-a", 1)]


def test_an_id_that_would_become_too_long_gives_way_to_the_messages_own(q: Session) -> None:
    (id,) = q.push("orders", Item(data=1, transaction_id="a" * 250))
    q.reject(q.pop("orders"))
    q.reprocess("orders")
    assert read(q) == [(f"reprocess-{id}", 1)]


def test_many_pages_are_reprocessed_in_the_order_of_their_death(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 3)
    bury(q, *range(10))
    assert q.reprocess("orders") == 10
    assert [data for _, data in read(q)] == list(range(10))


def test_large_letters_are_reprocessed_in_parts_that_a_server_takes(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MOST_BYTES", 1000)
    sizes = [400, 400, 400, 2000, 1, 1]
    bury(q, *(bytes(size) for size in sizes))
    pushed: list[int] = []
    push = q.push
    monkeypatch.setattr(q, "push", lambda to, some: (pushed.append(len(some)), push(to, some))[1])
    assert q.reprocess("orders") == 6
    assert pushed == [2, 1, 1, 2]
    assert [len(data) for _, data in read(q)] == sizes


def test_nothing_to_reprocess_is_no_error_but_no_queue_is(q: Session) -> None:
    q.configure("orders")
    assert q.reprocess("orders") == 0
    with pytest.raises(QueueNotFound):
        q.reprocess("nowhere")


def test_what_dies_while_others_are_reprocessed_is_left_for_the_next_time(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 2)
    bury(q, *(Item(data=n, transaction_id=f"t{n}") for n in range(4)))
    push = q.push

    def push_and_die(*args: Any, **options: Any) -> Any:
        """A consumer that fails still, and at once."""
        receipt = push(*args, **options)
        q.reject(q.pop("orders", batch=100), "still bad")
        return receipt

    monkeypatch.setattr(q, "push", push_and_die)
    assert q.reprocess("orders") == 4
    left = q.dead_letters("orders").items
    assert sorted(letter.transaction_id for letter in left) == [f"reprocess-t{n}" for n in range(4)]


def test_a_crash_between_push_and_removal_makes_no_second_copy(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(q, Item(data=1, transaction_id="a"), Item(data=2, transaction_id="b"))

    with monkeypatch.context() as broken:
        broken.setattr(q, "purge_dead", crash)
        with pytest.raises(Unavailable):
            q.reprocess("orders")
    assert q.dead_letters("orders").total == 2
    assert q.reprocess("orders") == 2
    assert read(q) == [("reprocess-a", 1), ("reprocess-b", 2)]


def test_another_message_that_used_the_same_id_is_not_taken_for_a_repeat(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", dedup_seconds=24 * HOURS, keep_seconds=72 * HOURS)
    bury(q, Item(data="monday", transaction_id="daily"))
    clock.advance(23 * HOURS)
    q.reprocess("orders")
    q.ack(q.pop("orders"))
    clock.advance(2 * HOURS)  # "daily" is forgotten, "reprocess-daily" is not
    (id,) = q.push("orders", Item(data="tuesday", transaction_id="daily"))
    q.reject(q.pop("orders"))
    assert q.reprocess("orders") == 1
    ((new, data),) = read(q)
    assert (new.startswith(f"reprocess-{id}-"), data) == (True, "tuesday")


def test_a_first_copy_that_is_no_longer_stored_does_not_swallow_a_message(
    q: Session, clock: VirtualClock
) -> None:
    bury(q, Item(data="same", transaction_id="daily"))
    clock.advance(23 * HOURS)
    q.reprocess("orders")
    (copy,) = q.pop("orders")
    copy.ack()
    q.delete_message("orders", copy.id)
    clock.advance(2 * HOURS)
    (id,) = q.push("orders", Item(data="same", transaction_id="daily"))
    q.reject(q.pop("orders"))
    q.reprocess("orders")
    ((new, data),) = read(q)
    assert (new.startswith(f"reprocess-{id}-"), data) == (True, "same")


@pytest.mark.parametrize("id", [None, "a"])
def test_a_message_that_is_replayed_and_dies_once_more_is_reprocessed_once_more(
    q: Session, clock: VirtualClock, id: str | None
) -> None:
    q.push("orders", Item(data="old", transaction_id=id))
    for replayed in range(3):
        clock.advance(1)
        died = q.pop("orders", group="g", batch=10)
        assert len(died) == 1 + replayed, "the message, and what came of its deaths before"
        died[0].reject("bad")
        q.ack(died[1:])
        clock.advance(1)
        assert q.reprocess("orders") == 1
        q.ack(q.pop("orders", group="g"))
        q.seek("orders", "g", to="start")
    assert len(q.pop("orders", group="g", batch=10)) == 4


def test_a_crash_makes_no_second_copy_of_what_had_to_take_another_id(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(q, "old")
    q.reprocess("orders")
    q.ack(q.pop("orders"))
    q.seek("orders", QUEUE_MODE, to="start")
    clock.advance(1)
    first, second = q.pop("orders", batch=2)
    first.reject()
    second.ack()
    with monkeypatch.context() as broken:
        broken.setattr(q, "purge_dead", crash)
        with pytest.raises(Unavailable):
            q.reprocess("orders")
    assert q.reprocess("orders") == 1
    assert [data for _, data in read(q)] == ["old"]


# alerts


class Alarms:
    """Records the calls of an alert."""

    def __init__(self, fails: int = 0) -> None:
        self.heard: list[tuple[str, int]] = []
        self._fails = fails

    def __call__(self, queue: str, depth: int) -> None:
        self.heard.append((queue, depth))
        if len(self.heard) <= self._fails:
            raise RuntimeError("the mail server is down")


def test_an_alert_calls_when_there_are_more_than_a_hundred_and_not_before(q: Session) -> None:
    alarms = Alarms()
    with q.alert_dead("orders", alarms) as alert:
        assert alert.check() == 0
        bury(q, *range(100))
        assert alert.check() == 100
        assert alarms.heard == []
        bury(q, 100)
        assert alert.check() == 101
    assert alarms.heard == [("orders", 101)]


def test_an_alert_calls_once_until_the_depth_was_back_at_the_mark(q: Session) -> None:
    alarms = Alarms()
    with q.alert_dead("orders", alarms, above=1) as alert:
        for reason in ("a", "b", "c"):
            bury(q, 1, reason=reason)
            alert.check()
        assert alarms.heard == [("orders", 2)]
        q.purge_dead("orders", error="a")
        q.purge_dead("orders", error="b")
        assert alert.check() == 1
        bury(q, 1)
        alert.check()
    assert alarms.heard == [("orders", 2), ("orders", 2)]


def test_an_alert_may_be_for_one_group(q: Session) -> None:
    alarms = Alarms()
    with q.alert_dead("orders", alarms, above=0, group="one") as alert:
        bury(q, 1, group="two")
        assert alert.check() == 0
        q.reject(q.pop("orders", group="one"))
        assert alert.check() == 1
    assert alarms.heard == [("orders", 1)]


def test_an_alert_looks_by_itself(q: Session) -> None:
    bury(q, 1, 2)
    alarms = Alarms()
    with q.alert_dead("orders", alarms, above=1, every=0.001):
        until(lambda: alarms.heard)
    assert alarms.heard == [("orders", 2)]


def test_an_alert_that_could_not_be_given_is_given_at_the_next_look(
    q: Session, caplog: pytest.LogCaptureFixture
) -> None:
    bury(q, 1)
    alarms = Alarms(fails=2)
    with q.alert_dead("orders", alarms, above=0, every=0.001):
        until(lambda: len(alarms.heard) == 3)
    assert caplog.text.count("the alert for orders failed") == 2


def test_an_alert_waits_for_a_server_that_is_away(
    q: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bury(q, 1)
    alarms, look, away = Alarms(), q.dead_letters, threading.Event()
    away.set()

    def look_or_not(*args: Any, **options: Any) -> Any:
        if away.is_set():
            raise Unavailable("gone fishing")
        return look(*args, **options)

    monkeypatch.setattr(q, "dead_letters", look_or_not)
    with caplog.at_level(logging.WARNING), q.alert_dead("orders", alarms, above=0, every=0.001):
        until(lambda: "the dead letters of orders cannot be read now: gone fishing" in caplog.text)
        away.clear()
        until(lambda: alarms.heard)


def test_closing_a_session_ends_its_alerts(open_session: Any) -> None:
    q = open_session()
    alert: Alert = q.alert_dead("orders", Alarms())
    q.close()
    assert not alert._thread.is_alive()


def test_an_alert_may_be_closed_by_its_own_call(q: Session) -> None:
    bury(q, 1)
    ended = threading.Event()
    made: list[Alert] = []
    ready = threading.Event()

    def call(queue: str, depth: int) -> None:
        ready.wait(20)
        made[0].close()
        ended.set()

    made.append(q.alert_dead("orders", call, above=0))
    ready.set()
    assert ended.wait(20)


@pytest.mark.parametrize(
    "options", [{"above": -1}, {"above": 1.5}, {"every": 0}, {"every": -1}, {"every": "often"}]
)
def test_an_alert_that_makes_no_sense_is_refused(q: Session, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        q.alert_dead("orders", Alarms(), **options)


# the same, awaited


def test_an_awaitable_session_does_the_same(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.push("orders", [Item(data=n, transaction_id=str(n)) for n in range(3)])
        await q.reject(await q.pop("orders", batch=3), "Timeout: 5 s")
        alarms = Alarms()
        alert = q.alert_dead("orders", alarms, above=2)
        await asyncio.to_thread(alert.check)
        assert alarms.heard == [("orders", 3)]
        assert await q.dead_distribution("orders") == {"Timeout": 3}
        assert await q.reprocess("orders") == 3
        batch = await q.pop("orders", batch=3)
        assert [m.transaction_id for m in batch] == [f"reprocess-{n}" for n in range(3)]
        await q.close()
        assert not alert._thread.is_alive()

    run(test)
