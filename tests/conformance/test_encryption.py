"""Payloads of an encrypted queue are unreadable on disk and unchanged for consumers."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.dialects.queen.verbs import streams, traces
from ackflow.errors import NoEncryptionKey, PayloadSealed
from ackflow.store.tx import Tx

pytestmark = pytest.mark.every_store

KEY = "00112233445566778899aabbccddeeff" * 2
OTHER = "ff" * 32
SECRET = "the launch code is 00000000"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    return monkeypatch


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def open_on(disk: Path, clock: VirtualClock | None = None) -> Session:
    return ackflow.connect(disk / "a.db", upkeep=False, clock=clock)


@pytest.fixture(params=["file", "postgres"])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> Iterator[Session]:
    """A session on a store whose rows a test reads and changes."""
    file = request.param == "file"
    url = str(tmp_path / "b.db") if file else request.getfixturevalue("postgres_url")
    with ackflow.connect(url, upkeep=False, clock=clock) as q:
        yield q


def execute(q: Session, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run SQL on the rows of a database, and forget what was cached of them."""
    if "postgres" in type(q.broker.store).__module__:
        statement = statement.replace("?", "$")

    def run(tx: Tx) -> list[tuple[Any, ...]]:
        reads = statement.startswith("select")
        rows = (tx._execute if reads else tx._write)(statement, values)
        found = [tuple(row) for row in rows] if reads else []  # type: ignore[attr-defined]
        tx.cache.clear()
        return found

    return q.broker.do(run, True)


def swap(q: Session, table: str, keys: str, columns: str) -> None:
    """Swap columns of the first two rows of a table."""
    rows = execute(q, f"select {keys}, {columns} from {table} order by {keys} limit 2")
    n = keys.count(",") + 1
    names = [name.strip() for name in f"{keys}, {columns}".split(",")]
    marks = [f"{name} = ?{at + 1}" for at, name in enumerate(names)]
    change = f"update {table} set {', '.join(marks[n:])} where {' and '.join(marks[:n])}"
    for row, other in (rows, rows[::-1]):
        execute(q, change, *row[:n], *other[n:])


def test_many_messages_in_one_push_are_sealed_and_read_again(disk: Path) -> None:
    many = [{"n": n, "text": SECRET} for n in range(1000)]
    with open_on(disk) as q:
        q.configure("q", encrypted=True)
        q.push("q", many)
        assert SECRET.encode() not in on_disk(disk)
        assert [m.data for m in q.pop("q", batch=1000)] == many


def test_payloads_are_not_readable_in_the_files(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("open")
        q.push("open", SECRET[:10])
        q.configure("orders", encrypted=True)
        q.push("orders", [SECRET, SECRET])
        q.push("orders", Item(data=SECRET, transaction_id="t", headers={"h": "v"}))
        q.push("orders", SECRET.encode())
        q.publish("p", 1, [q.stage("p", 1, "orders", SECRET)])
        first, second, *_ = q.pop("orders", batch=2)
        first.requeue()
        second.reject("bad")
        with q.transaction() as t:
            t.push("orders", SECRET)
        assert SECRET[:10].encode() in on_disk(disk)
        assert SECRET.encode() not in on_disk(disk)


def test_payloads_are_read_as_they_were_pushed(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        ids = q.push("orders", [{"n": 1}, Item(data=b"\x00\xff", headers={"h": "v"})])
        (third,) = q.push("orders", Item(data=3, transaction_id="t"))
    with open_on(disk) as q:
        assert [m.data for m in q.browse("orders").items] == [{"n": 1}, b"\x00\xff", 3]
        assert [m.id for m in q.search("orders", '"n":1').items] == [ids[0]]
        assert q.message("orders", third).transaction_id == "t"
        one, two, three = q.pop("orders", batch=3)
        assert (one.data, two.data, three.data) == ({"n": 1}, b"\x00\xff", 3)
        assert (two.headers, three.transaction_id) == ({"h": "v"}, "t")
        one.reject("bad")
        two.requeue()
        three.dead_letter("worse")
    with open_on(disk) as q:
        assert [d.data for d in q.dead_letters("orders").items] == [3, {"n": 1}]
        assert [m.data for m in q.pop("orders", batch=9)] == [b"\x00\xff"]
        assert q.redrive("orders") == 2
        assert sorted(str(m.data) for m in q.pop("orders", batch=9)) == ["3", "{'n': 1}"]


def test_what_is_staged_is_encrypted_and_published_as_it_was(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        stage = q.stage("p", 1, "orders", [SECRET, Item(data=1, transaction_id="t")])
        assert SECRET.encode() not in on_disk(disk)
        assert q.publish("p", 1, [stage]) == 2
        assert [m.data for m in q.pop("orders", batch=2)] == [SECRET, 1]


def test_a_copy_sent_to_an_open_queue_is_readable_there(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", SECRET)
        q.pop("orders")[0].reject("bad")
        q.redrive("orders", to="open")
        assert [m.data for m in q.pop("open")] == [SECRET]


def test_the_option_may_be_turned_on_and_off_for_what_comes_later(disk: Path) -> None:
    with open_on(disk) as q:
        q.push("orders", "before")
        q.configure("orders", encrypted=True)
        q.push("orders", "while")
        q.configure("orders", encrypted=False)
        q.push("orders", "after")
    with open_on(disk) as q:
        assert [m.data for m in q.pop("orders", batch=3)] == ["before", "while", "after"]


def test_without_a_key_the_option_is_refused_and_nothing_is_stored(
    q: Session, key: pytest.MonkeyPatch
) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with pytest.raises(NoEncryptionKey, match="ACKFLOW_ENCRYPTION_KEY to 64 hexadecimal digits"):
        q.configure("orders", encrypted=True)
    assert q.queues() == []


@pytest.mark.parametrize("bad", ["", "abc", "g" * 64, "0" * 63, "0" * 65])
def test_an_invalid_key_is_refused(q: Session, key: pytest.MonkeyPatch, bad: str) -> None:
    key.setenv("ACKFLOW_ENCRYPTION_KEY", bad)
    with pytest.raises(NoEncryptionKey, match="64 hexadecimal digits"):
        q.configure("orders", encrypted=True)


def test_queens_name_of_the_key_is_known_too(q: Session, key: pytest.MonkeyPatch) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    key.setenv("QUEEN_ENCRYPTION_KEY", OTHER)
    assert q.configure("orders", encrypted=True).encrypted
    q.push("orders", 1)
    assert [m.data for m in q.pop("orders")] == [1]


@pytest.mark.parametrize("given", [None, OTHER])
def test_without_its_key_a_message_is_neither_handed_out_nor_lost(
    disk: Path, key: pytest.MonkeyPatch, given: str | None
) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", [1, 2])
        q.group("orders", "g")
        q.push("open", 3)
    key.setenv("ACKFLOW_ENCRYPTION_KEY", given) if given else key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with open_on(disk) as q:
        with pytest.raises(PayloadSealed, match="is encrypted"):
            q.pop("orders", group="g", batch=2)
        with pytest.raises(PayloadSealed):
            q.browse("orders")
        if given is None:
            with pytest.raises(PayloadSealed):
                q.push("orders", 4)
        assert q.queue_stats("orders").messages == 2
        assert q.group_stats("orders", "g").counts.ready == 2
        assert [m.data for m in q.pop("open")] == [3]
    key.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    with open_on(disk) as q:
        assert [m.data for m in q.pop("orders", group="g", batch=2)] == [1, 2]


def test_upkeep_goes_on_without_the_key(
    disk: Path, clock: VirtualClock, key: pytest.MonkeyPatch
) -> None:
    with open_on(disk, clock) as q:
        q.configure("orders", encrypted=True, max_deliver=1, max_wait_seconds=400)
        q.push("orders", [1, 2])
        q.pop("orders", lease_seconds=10)
        q.push("open", 3)
        q.pop("open", lease_seconds=10)
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with open_on(disk, clock) as q:
        clock.advance(500)
        assert q.upkeep().leases_expired == 1
        assert q.group_stats("open").counts.ready == 1
    key.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    with open_on(disk, clock) as q:
        assert q.upkeep().leases_expired == 1
        assert sorted(d.kind for d in q.dead_letters("orders").items) == ["max_deliver", "max_wait"]


def test_an_older_key_still_opens_what_it_sealed(disk: Path, key: pytest.MonkeyPatch) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", "old")
    key.setenv("ACKFLOW_ENCRYPTION_KEY", f"{OTHER}, {KEY}")
    with open_on(disk) as q:
        q.push("orders", "new")
    key.setenv("ACKFLOW_ENCRYPTION_KEY", OTHER)
    with open_on(disk) as q:
        q.purge("orders")
        q.push("orders", "newer")
        assert [m.data for m in q.pop("orders")] == ["newer"]


def test_what_is_the_same_does_not_look_the_same(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", SECRET)
        q.push("orders", SECRET)
        rows = q.broker.look(lambda tx: tx._execute("select data from segments", ()))
        assert len({bytes(row[0]) for row in rows}) == 2


@pytest.mark.parametrize("size", [1, 3_000])
def test_a_body_cannot_be_opened_in_the_place_of_another(stored: Session, size: int) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", "a" * size, partition="rich")
    q.push("orders", "b" * size, partition="poor")
    if size == 1:
        swap(q, "segments", "lane, first", "ends, data, rest")
    else:
        swap(q, "bodies", "id", "ends, data, rest")
    with pytest.raises(PayloadSealed, match="changed or moved"):
        q.pop("orders", partition="poor")
    with pytest.raises(PayloadSealed):
        q.browse("orders")


def test_a_segment_cannot_be_pointed_at_the_body_of_another(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", "a" * 3_000)
    q.push("orders", "b" * 3_000)
    q.publish("p", 1, [q.stage("p", 1, "orders", "c"), q.stage("p", 1, "orders", "d")])
    assert [m.data[0] for m in q.browse("orders").items] == ["a", "b", "c", "d"]
    bodies = [row[0] for row in execute(q, "select body from segments order by first")]
    for one, other in ((0, 1), (2, 3), (0, 2)):
        execute(q, "update segments set body = ?1 where first = ?2", bodies[other], one)
        with pytest.raises(PayloadSealed):
            q.browse("orders")
        execute(q, "update segments set body = ?1 where first = ?2", bodies[one], one)
    assert len(q.pop("orders", batch=4)) == 4


def test_staged_bodies_cannot_be_exchanged_before_or_after_they_are_published(
    stored: Session,
) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    for batch, late in ((1, False), (2, True)):
        with q.transaction() as t:
            t.push("orders", "before")
        stages = [q.stage("p", batch, "orders", text, partition=text) for text in ("one", "two")]
        if not late:
            swap(q, "bodies", "id", "ends, data, rest")
        q.publish("p", batch, stages)
        if late:
            assert [m.data for m in q.browse("orders", partition="one").items] == ["one"]
            swap(q, "bodies", "id", "ends, data, rest")
        with pytest.raises(PayloadSealed):
            q.browse("orders", partition="one")
        q.purge("orders")


def test_offsets_transaction_ids_and_headers_cannot_be_changed(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", [Item(data=11, transaction_id="t"), Item(data=222, headers={"h": "v"})])
    ends, rest = execute(q, "select ends, rest from segments")[0]
    assert b"v" in rest
    execute(q, "update segments set rest = ?1", bytes(rest).replace(b"\xa1t", b"\xa1u"))
    with pytest.raises(PayloadSealed):
        q.browse("orders")
    execute(q, "update segments set rest = ?1, ends = ?2", rest, bytes([3]) + bytes(ends)[1:])
    with pytest.raises(PayloadSealed):
        q.browse("orders")
    execute(q, "update segments set ends = ?1", ends)
    assert [m.data for m in q.browse("orders").items] == [11, 222]


def test_dead_letters_cannot_be_exchanged(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", ["one", "two"])
    for message in q.pop("orders", batch=2):
        message.reject("why " + message.data)
    for columns in ("payload, rest", "reason"):
        swap(q, "dead", "id", columns)
        with pytest.raises(PayloadSealed):
            q.dead_letters("orders")
        swap(q, "dead", "id", columns)
    assert [d.reason for d in q.dead_letters("orders").items] == ["why two", "why one"]


def test_pushes_of_one_commit_become_one_sealed_segment(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    with q.transaction() as t:
        t.push("orders", 1)
        t.push("orders", 2)
    q.push("orders", 3)
    execute(q, "select 1")
    assert [m.data for m in q.pop("orders", batch=9)] == [1, 2, 3]


def test_what_was_staged_before_the_queue_was_encrypted_is_sealed_when_it_is_published(
    disk: Path,
) -> None:
    with open_on(disk) as q:
        stage = q.stage("p", 1, "orders", [SECRET, Item(data=b"\x00", headers={"h": "v"})])
        q.configure("orders", encrypted=True)
        q.publish("p", 1, [stage])
        rows = execute(q, "select data from bodies") + execute(q, "select data from segments")
        assert not any(SECRET.encode() in bytes(row[0] or b"") for row in rows)
        one, two = q.pop("orders", batch=2)
        assert (one.data, two.data, two.headers) == (SECRET, b"\x00", {"h": "v"})


def sealed_by_an_older_version(data: bytes) -> bytes:
    """Encrypt as versions did that did not bind a body to its place."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = bytes.fromhex(KEY)
    nonce = bytes(12)
    return blake2b(key, digest_size=4).digest() + nonce + AESGCM(key).encrypt(nonce, data, None)


def test_bodies_sealed_by_an_older_version_still_open(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", ["one", "two"])
    q.pop("orders", batch=1)[0].reject("bad")
    old = msgspec.msgpack.encode({"sealed": True})
    data = sealed_by_an_older_version(b'"old""new"')
    execute(q, "update segments set data = ?1, rest = ?2", data, old)
    letter = sealed_by_an_older_version(b'"letter"')
    execute(q, "update dead set payload = ?1, rest = ?2, reason = 'plain'", letter, old)
    assert [m.data for m in q.browse("orders").items] == ["old", "new"]
    (dead,) = q.dead_letters("orders").items
    assert (dead.data, dead.reason) == ("letter", "plain")


def everything(q: Session) -> bytes:
    """All columns of all tables that hold something about messages."""
    tables = (
        "segments",
        "bodies",
        "claim_rows",
        "dead",
        "traces",
        "kv",
        "keys",
        "stages",
        "leases",
    )
    rows = [row for table in tables for row in execute(q, f"select * from {table}")]
    return b"\n".join(
        column if isinstance(column, bytes) else str(column).encode()
        for row in rows
        for column in row
    )


def test_the_texts_of_errors_are_sealed(
    stored: Session, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q = stored
    q.configure("orders", encrypted=True, max_deliver=3)
    ids = q.push("orders", [1, 2, 3, 4, 5])
    one, two, three, four, five = q.pop("orders", batch=5)
    one.nack(f"{SECRET} 1", delay=10)
    two.reject(f"{SECRET}: 2")
    three.nack(f"{SECRET} 3", delay=10)
    four.dead_letter(f"{SECRET}: 4")
    five.nack(f"{SECRET} 5")
    q.pop("orders")[0].requeue()
    assert SECRET.encode() not in everything(q)
    assert SECRET not in caplog.text
    assert q.why("orders", ids[0]).sentence.endswith(f"after '{SECRET} 1'.")
    clock.advance(11)
    again = q.pop("orders", batch=9)
    assert [m.data for m in again] == [1, 3, 5]
    again[0].ack()  # splits the claims
    again[1].nack(f"{SECRET} 7")
    again[2].dead_letter()
    q.pop("orders")[0].reject()
    assert SECRET.encode() not in everything(q)
    reasons = {d.data: d.reason for d in q.dead_letters("orders").items}
    assert reasons == {
        2: f"{SECRET}: 2", 4: f"{SECRET}: 4", 5: f"{SECRET} 5", 3: f"{SECRET} 7",
    }  # fmt: skip


def test_sealed_dead_letters_are_found_and_counted_by_their_error(stored: Session) -> None:
    q = stored
    q.push("orders", [0, 1])
    q.pop("orders")[0].reject("timeout: before")
    q.pop("orders")[0].reject("\x01=odd: text")
    q.configure("orders", encrypted=True)
    q.push("orders", list(range(2, 10)))
    for message in q.pop("orders", batch=8):
        message.reject("timeout: later" if message.data % 2 else "refused: no")

    def found(error: str, **more: Any) -> list[int]:
        return [d.data for d in q.dead_letters("orders", error=error, **more).items]

    assert found("timeout") == [9, 7, 5, 3, 0]
    assert found("timeout", limit=2) == [9, 7]
    assert q.dead_letters("orders", error="timeout").total == 5
    assert q.dead_letters("orders", error="odd").total == 1
    assert found("=odd") == [1]
    assert found("a") == found("later") == [9, 7, 5, 3]  # not what base64 happens to contain
    summary = {line.error: line.count for line in q.dead_summary("orders")}
    assert summary == {"refused": 4, "timeout": 5, "\x01=odd": 1}
    assert q.redrive("orders", error="later") == 4
    assert q.purge_dead("orders", error="refused") == 4
    assert [d.reason for d in q.dead_letters("orders").items] == [
        "\x01=odd: text",
        "timeout: before",
    ]


def test_a_reason_that_looks_sealed_is_stored_as_it_is(q: Session) -> None:
    reasons = ["\x01AAAA", "\x01=", "\x01", "\x01\x01=x"]
    ids = q.push("orders", [0, 1, 2, 3])
    for message in q.pop("orders", batch=4):
        message.nack(reasons[message.data], delay=60)
    for id, reason in zip(ids, reasons, strict=True):
        assert q.why("orders", id).error == reason


def test_without_the_key_an_error_is_not_shown_and_not_lost(
    stored: Session, clock: VirtualClock, key: pytest.MonkeyPatch
) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].nack("secret", delay=60)
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    execute(q, "select 1")
    assert q.why("orders", id).error == "(encrypted)"
    clock.advance(61)
    q.upkeep()
    key.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    assert q.why("orders", id).error == "secret"


def test_traces_are_sealed_and_bound_to_their_row(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", Item(data=1, transaction_id="t"))
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, "Default").id, False)
    for n in (1, 2):
        data = f'{{"n":{n},"text":"{SECRET}"}}'.encode()
        q.broker.do(traces.record, False, traces.NewTrace(home, "t", "info", data, ["name"]))
    assert SECRET.encode() not in everything(q)
    found = q.broker.look(traces.of_message, home, "t")
    assert [msgspec.json.decode(one.data)["n"] for one in found] == [1, 2]
    assert len(q.broker.look(traces.by_name, "name", 9, 0)[0]) == 2
    swap(q, "traces", "id", "data")
    with pytest.raises(PayloadSealed):
        q.broker.look(traces.of_message, home, "t")


def test_the_state_of_streams_is_sealed_and_bound_to_its_key(stored: Session) -> None:
    q = stored
    q.configure("orders", encrypted=True)
    q.push("orders", 1)
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, "Default").id, False)
    query = q.broker.do(
        streams.register, True, "totals", streams.Query("", "h", "orders"), False
    ).query.id
    state: list[tuple[str, bytes | None]] = [
        ("a", f'{{"windowEnd":1000,"text":"{SECRET}"}}'.encode()), ("b", f'"{SECRET}"'.encode()),
    ]  # fmt: skip
    q.broker.do(streams.cycle, True, streams.Cycle(query, home, state))
    assert SECRET.encode() not in everything(q)

    def read(**wanted: Any) -> list[tuple[str, bytes]]:
        found = q.broker.look(streams.get_state, query, home, streams.Wanted(**wanted))
        return [(row[0], bytes(row[1])) for row in found.rows]

    assert read() == state
    assert read(keys=["b"]) == state[1:]
    q.purge("orders")  # no window closes while messages wait
    assert read(ripe_at=1000.0) == state[:1]
    assert [v.data for v in q.values("streams/states/")][-1] == SECRET
    value = execute(q, "select value from kv where key like '%/a'")[0][0]
    execute(q, "update kv set value = ?1 where key like '%/b'", value)
    with pytest.raises(PayloadSealed):
        read()
