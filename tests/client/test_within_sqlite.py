"""Pushes and acks inside a transaction of the user's own SQLite connection."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow import Item, Session
from ackflow.errors import (
    InvalidArgument,
    KeyConflict,
    NotADatabase,
    QueueFull,
    StorageBusy,
    TransactionFailed,
)

ORDERS = "create table if not exists my_orders (id integer primary key, note text)"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


@pytest.fixture
def q(path: str) -> Iterator[Session]:
    with ackflow.connect(path, upkeep=False) as session:
        yield session


@pytest.fixture
def db(q: Session, path: str) -> Iterator[apsw.Connection]:
    """The user's own connection, with a table of the user in the file of the queue."""
    with apsw.Connection(path) as connection:
        connection.set_busy_timeout(5_000)
        connection.execute(ORDERS)
    yield connection
    connection.close()


def count(db: apsw.Connection) -> int:
    return int(db.execute("select count(*) from my_orders").fetchall()[0][0])


def test_a_commit_makes_row_and_message_visible_and_a_rollback_takes_both_along(
    q: Session, db: apsw.Connection
) -> None:
    db.execute("begin immediate")
    db.execute("insert into my_orders values (1, 'a')")
    receipt = ackflow.within(db).push("orders", {"id": 1})
    db.execute("commit")
    (message,) = q.pop("orders")
    assert (message.data, message.id) == ({"id": 1}, receipt[0])
    message.ack()

    db.execute("begin immediate")
    db.execute("insert into my_orders values (2, 'b')")
    ackflow.within(db).push("orders", {"id": 2})
    db.execute("rollback")
    assert count(db) == 1
    assert not q.pop("orders")


def test_the_open_transaction_is_not_visible_to_others(q: Session, db: apsw.Connection) -> None:
    q.push("orders", 0)
    db.execute("begin immediate")
    ackflow.within(db).push("orders", 1)
    assert [m.data for m in q.browse("orders").items] == [0]
    db.execute("commit")
    assert [m.data for m in q.browse("orders").items] == [0, 1]


def test_sequences_continue_after_a_rollback_and_no_number_is_passed(
    q: Session, db: apsw.Connection
) -> None:
    for n in range(20):
        db.execute("begin immediate")
        ackflow.within(db).push("orders", [f"mine {n}"] * 3)
        db.execute("commit" if n % 2 else "rollback")
        q.push("orders", f"theirs {n}")
        got = q.pop("orders", batch=10)
        assert [m.data for m in got] == [f"mine {n}"] * (3 if n % 2 else 0) + [f"theirs {n}"]
        q.ack(got)
    assert q.group_stats("orders").counts.done == 50


def test_a_waiting_pop_wakes_at_the_commit(q: Session, db: apsw.Connection, path: str) -> None:
    q.push("orders", 0)
    q.pop("orders")[0].ack()
    woken: list[float] = []
    with ackflow.connect(path) as waiting:

        def wait() -> None:
            assert [m.data for m in waiting.pop("orders", wait=20)] == [1]
            woken.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        db.execute("begin immediate")
        ackflow.within(db).push("orders", 1)
        time.sleep(0.1)
        assert not woken
        db.execute("commit")
        committed = time.monotonic()
        thread.join()
    assert woken[0] - committed < 5


def test_keys_transaction_ids_delays_and_priorities_hold(q: Session, db: apsw.Connection) -> None:
    q.push("orders", "first", key="k")
    q.push("orders", Item(data="once", transaction_id="t"))
    db.execute("begin immediate")
    w = ackflow.within(db)
    assert w.push("orders", "first", key="k").repeated
    with pytest.raises(KeyConflict):
        w.push("orders", "other", key="k")
    assert w.push("orders", Item(data="twice", transaction_id="t")).duplicates
    w.push("orders", "late", delay=60)
    w.push("orders", "low", priority=5, headers={"a": "b"})
    w.push("orders", list(range(300)), partition="many")
    db.execute("commit")
    assert q.push("orders", Item(data="thrice", transaction_id="t")).duplicates
    got = [m.data for m in q.pop("orders", batch=1000, partitions=10)]
    assert got[-1] == "low"
    assert sorted(map(str, got)) == sorted(map(str, ["first", "once", "low", *range(300)]))


def test_a_refused_push_changes_nothing_and_the_transaction_goes_on(
    q: Session, db: apsw.Connection
) -> None:
    q.configure("small", max_size=1)
    db.execute("begin immediate")
    db.execute("insert into my_orders values (1, 'a')")
    w = ackflow.within(db)
    w.push("small", 1)
    with pytest.raises(QueueFull):
        w.push("small", 2)
    w.push("other", 3)
    db.execute("commit")
    assert count(db) == 1
    assert [m.data for m in q.pop("small", batch=9)] == [1]
    assert [m.data for m in q.pop("other", batch=9)] == [3]


def test_a_message_is_acked_in_the_transaction_that_stores_its_effect(
    q: Session, db: apsw.Connection
) -> None:
    q.push("orders", [1, 2])
    one, two = q.pop("orders", batch=2)
    for message, end in ((one, "commit"), (two, "rollback")):
        db.execute("begin immediate")
        db.execute("insert into my_orders values (?, 'done')", (message.data,))
        t = q.transaction()
        t.ack(message).push("next", message.data)
        assert ackflow.within(db).commit(t).settled == 1
        db.execute(end)
    assert count(db) == 1
    assert [m.data for m in q.pop("next", batch=9)] == [1]
    assert q.group_stats("orders").counts.done == 1
    two.ack()
    db.execute("begin immediate")
    with pytest.raises(TransactionFailed):
        ackflow.within(db).commit(q.transaction().ack(one))
    db.execute("commit")


def test_a_transaction_that_read_before_another_wrote_is_refused_whole(
    q: Session, db: apsw.Connection
) -> None:
    db.execute("begin")
    count(db)
    q.push("orders", "theirs")
    with pytest.raises(StorageBusy, match="begin immediate"):
        ackflow.within(db).push("orders", "mine")
    db.execute("rollback")
    assert [m.data for m in q.pop("orders", batch=9)] == ["theirs"]


def test_what_cannot_be_safe_is_refused_with_a_sentence(
    db: apsw.Connection, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="no open transaction"):
        ackflow.within(db).push("orders", 1)
    with apsw.Connection(":memory:") as memory, pytest.raises(InvalidArgument, match="memory"):
        ackflow.within(memory).push("orders", 1)
    foreign = apsw.Connection(str(tmp_path / "foreign.db"))
    foreign.execute("create table t (a); begin immediate")
    with pytest.raises(NotADatabase, match="holds no queue"):
        ackflow.within(foreign).push("orders", 1)
    foreign.close()
    db.execute("pragma synchronous = off; begin immediate")
    with pytest.raises(InvalidArgument, match="synchronous"):
        ackflow.within(db).push("orders", 1)
    db.execute("rollback")
    for bad in (object(), "orders.db", None):
        with pytest.raises(InvalidArgument, match="within takes"):
            ackflow.within(bad)


STDLIB = """
import sqlite3, sys, ackflow
db = sqlite3.connect(sys.argv[1])
db.row_factory, db.text_factory = sqlite3.Row, bytes
db.execute("create table if not exists my_orders (id integer primary key, note text)")
with db:
    db.execute("insert into my_orders values (1, 'a')")
    ackflow.within(db).push("orders", {"id": 1})
try:
    with db:
        db.execute("insert into my_orders values (2, 'b')")
        ackflow.within(db).push("orders", {"id": 2})
        raise KeyError
except KeyError:
    pass
with db:
    ackflow.within(db).push("orders", ["x" * 2000] * 300)
plain = sqlite3.connect(sys.argv[1], isolation_level=None)
try:
    ackflow.within(plain).push("orders", 3)
except ackflow.errors.InvalidArgument as error:
    print(error)
assert db.text_factory is bytes
"""


def test_the_module_sqlite3_works_in_a_process_without_a_session(q: Session, path: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STDLIB, path], check=True, capture_output=True, text=True
    )
    assert "no open transaction" in ran.stdout
    got = q.pop("orders", batch=1000)
    assert [m.data for m in got] == [{"id": 1}, *["x" * 2000] * 300]


@pytest.mark.skipif(not apsw.using_amalgamation, reason="apsw and sqlite3 share one SQLite here")
def test_the_module_sqlite3_is_refused_beside_a_session_of_this_process(tmp_path: Path) -> None:
    """Not on a file in use: opening it with a second copy of SQLite is what must not be done."""
    script = """
import os, sqlite3, sys, ackflow
q = ackflow.connect(sys.argv[1], upkeep=False)
db = sqlite3.connect(sys.argv[1])
try:
    ackflow.within(db).push("orders", 1)
except ackflow.errors.InvalidArgument as error:
    print(error, flush=True)
os._exit(0)  # closing the second copy can crash the first, which is why it is refused
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.db")], check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert "another copy of SQLite" in ran.stdout


KILLED = """
import sys, time, apsw, ackflow
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(10_000)
db.execute("begin immediate")
db.execute("insert into my_orders values (9, 'killed')")
ackflow.within(db).push("orders", "killed")
print("pushed", flush=True)
time.sleep(60)
"""


def test_a_process_killed_between_push_and_commit_leaves_nothing(
    q: Session, db: apsw.Connection, path: str
) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"pushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    q.push("orders", "after")
    assert [m.data for m in q.pop("orders", batch=9)] == ["after"]
    assert count(db) == 0


WRITER = """
import sys, apsw, ackflow
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(30_000)
for n in range(40):
    db.execute("begin immediate")
    db.execute("insert into my_orders (note) values (?)", (f"{sys.argv[2]} {n}",))
    ackflow.within(db).push("orders", f"{sys.argv[2]} {n}")
    db.execute("rollback" if n % 5 == 0 else "commit")
"""


@pytest.mark.outer
def test_two_writers_and_a_broker_lose_nothing_and_agree_with_the_rows(
    q: Session, db: apsw.Connection, path: str
) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name]) for name in ("one", "two")
    ]
    got: list[str] = []
    pushed = 0
    while len(got) < 64 + pushed or any(writer.poll() is None for writer in writers):
        if pushed < 20:
            q.push("orders", f"broker {pushed}")
            pushed += 1
        batch = q.pop("orders", batch=7, wait=0.2)
        got += [m.data for m in batch]
        q.ack(batch)
        assert all(writer.poll() in (None, 0) for writer in writers)
    rows = [note for (note,) in db.execute("select note from my_orders order by id").fetchall()]
    assert sorted(got) == sorted([*rows, *(f"broker {n}" for n in range(20))])
    for name in ("one", "two"):
        assert [d for d in got if d.startswith(name)] == [r for r in rows if r.startswith(name)]
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.ready, counts.leased) == (84, 0, 0)


def test_a_message_is_on_disk_before_it_is_delivered_also_if_the_commit_did_not_sync_it(
    q: Session, db: apsw.Connection
) -> None:
    """Otherwise its id could be given to another message after a power cut."""
    record = q._broker.store._record  # type: ignore[attr-defined]
    db.execute("pragma synchronous = normal; begin immediate")
    ackflow.within(db).push("orders", 1)
    db.execute("commit")
    assert record.synced < record.begun
    q.pop("orders")
    assert record.synced == record.begun


def test_a_rollback_leaves_no_message_that_waits_for_a_sync(
    q: Session, db: apsw.Connection
) -> None:
    db.execute("begin immediate")
    ackflow.within(db).push("orders", 1)
    db.execute("rollback")
    q.push("orders", 2)
    assert [m.data for m in q.pop("orders", batch=9)] == [2]


LOOP = """
import itertools, sys, apsw, ackflow
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(30_000)
print("up", flush=True)
for n in itertools.count():
    note = f"{sys.argv[2]} {n}"
    db.execute("begin immediate")
    db.execute("insert into my_orders (note) values (?)", (note,))
    ackflow.within(db).push("orders", note)
    db.execute("rollback" if n % 3 == 0 else "commit")
"""


@pytest.mark.outer
def test_writers_that_are_killed_anywhere_leave_as_many_rows_as_messages(
    q: Session, db: apsw.Connection, path: str
) -> None:
    got: list[str] = []
    for run in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, path, str(run)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        until = time.monotonic() + 0.2 + run * 0.037
        while time.monotonic() < until:
            batch = q.pop("orders", batch=50, wait=0.02)
            got += [message.data for message in batch]
            q.ack(batch)
        process.kill()
        process.wait()
        process.stdout.close()
    while batch := q.pop("orders", batch=1_000):
        got += [message.data for message in batch]
        q.ack(batch)
    rows = [note for (note,) in db.execute("select note from my_orders order by id").fetchall()]
    assert got == rows
    assert len(rows) > 20
