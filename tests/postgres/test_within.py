"""Pushes and acks inside a transaction of the user's own connection to PostgreSQL."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy import orm

import ackflow
from ackflow import Item, Session
from ackflow.errors import (
    AckflowError,
    InvalidArgument,
    KeyConflict,
    NotADatabase,
    QueueFull,
    StorageBusy,
    TransactionFailed,
)

Db = psycopg.Connection[Any]
ORDERS = "create table if not exists my_orders (id bigserial primary key, note text)"


@pytest.fixture
def q(postgres_url: str) -> Iterator[Session]:
    with ackflow.connect(postgres_url, upkeep=False) as session:
        yield session


@pytest.fixture
def db(q: Session, postgres_url: str) -> Iterator[Db]:
    """The user's own connection, with settings that must not matter and must not change."""
    with psycopg.connect(postgres_url, row_factory=dict_row) as connection:
        connection.execute("drop table if exists my_orders")
        connection.execute(ORDERS)
        connection.commit()
        yield connection
        connection.rollback()


def notes(db: Db) -> list[str]:
    return [row["note"] for row in db.execute("select note from my_orders order by id").fetchall()]


def add(db: Db, note: str) -> None:
    db.execute("insert into my_orders (note) values (%s)", (note,))


def test_a_commit_makes_row_and_message_visible_and_a_rollback_takes_both_along(
    q: Session, db: Db
) -> None:
    add(db, "a")
    receipt = ackflow.within(db).push("orders", {"id": 1})
    assert q.values("x") == []  # reading is not blocked
    db.commit()
    (message,) = q.pop("orders")
    assert (message.data, message.id) == ({"id": 1}, receipt[0])
    message.ack()
    add(db, "b")
    ackflow.within(db).push("orders", {"id": 2})
    db.rollback()
    assert notes(db) == ["a"]
    assert not q.pop("orders")


def test_sequences_continue_after_a_rollback_and_every_broker_notices(
    q: Session, db: Db, postgres_url: str
) -> None:
    with ackflow.connect(postgres_url, upkeep=False) as other:
        for n in range(8):
            ackflow.within(db).push("orders", [f"mine {n}"] * 3)
            db.commit() if n % 2 else db.rollback()
            (q, other)[n % 2].push("orders", f"theirs {n}")
            got = (other, q)[n % 2].pop("orders", batch=10)
            assert [m.data for m in got] == [f"mine {n}"] * (3 if n % 2 else 0) + [f"theirs {n}"]
            (other, q)[n % 2].ack(got)
    assert q.group_stats("orders").counts.done == 20


def test_an_inner_savepoint_of_the_user_takes_the_message_along(q: Session, db: Db) -> None:
    with db.transaction():
        add(db, "outer")
        ackflow.within(db).push("orders", "outer")
        with contextlib.suppress(KeyError), db.transaction():
            add(db, "inner")
            ackflow.within(db).push("orders", "inner")
            raise KeyError
        ackflow.within(db).push("orders", "last")
    assert notes(db) == ["outer"]
    assert [m.data for m in q.pop("orders", batch=9)] == ["outer", "last"]


def test_a_waiting_pop_wakes_at_the_commit(q: Session, db: Db, postgres_url: str) -> None:
    q.push("orders", 0)
    q.pop("orders")[0].ack()
    woken: list[float] = []
    with ackflow.connect(postgres_url) as waiting:

        def wait() -> None:
            while not (got := waiting.pop("orders", wait=20)):
                pass
            assert [m.data for m in got] == [1]
            woken.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
        ackflow.within(db).push("orders", 1)
        db.commit()
        committed = time.monotonic()
        thread.join()
    assert woken[0] - committed < 5


def test_keys_and_transaction_ids_hold_and_a_refusal_leaves_the_transaction_usable(
    q: Session, db: Db
) -> None:
    q.push("orders", "first", key="k")
    q.push("orders", Item(data="once", transaction_id="t"))
    q.configure("small", max_size=1)
    w = ackflow.within(db)
    add(db, "a")
    assert w.push("orders", "first", key="k").repeated
    with pytest.raises(KeyConflict):
        w.push("orders", "other", key="k")
    w.push("small", 1)
    with pytest.raises(QueueFull):
        w.push("small", 2)
    assert w.push("orders", Item(data="twice", transaction_id="t")).duplicates
    w.push("orders", "late", delay=60)
    w.push("orders", list(range(300)), partition="many")
    db.commit()
    assert notes(db) == ["a"]
    got = [str(m.data) for m in q.pop("orders", batch=1000, partitions=9)]
    assert sorted(got) == sorted(["first", "once", *map(str, range(300))])
    assert [m.data for m in q.pop("small", batch=9)] == [1]


def test_a_message_is_acked_in_the_transaction_that_stores_its_effect(q: Session, db: Db) -> None:
    q.push("orders", ["1", "2"])
    one, two = q.pop("orders", batch=2)
    for message, end in ((one, db.commit), (two, db.rollback)):
        add(db, message.data)
        t = q.transaction().ack(message).push("next", message.data)
        assert ackflow.within(db).commit(t).settled == 1
        end()
    assert notes(db) == ["1"]
    assert [m.data for m in q.pop("next", batch=9)] == ["1"]
    with pytest.raises(TransactionFailed):
        ackflow.within(db).commit(q.transaction().ack(one))
    db.rollback()
    two.ack()
    assert q.group_stats("orders").counts.done == 2


def test_the_settings_of_the_connection_are_the_same_afterwards(q: Session, db: Db) -> None:
    db.execute("set search_path = public; set local enable_sort = on; set lock_timeout = '3s'")
    shown = ("search_path", "enable_sort", "enable_seqscan", "lock_timeout", "jit")

    def settings() -> list[Any]:
        return [db.execute(f"show {name}".encode()).fetchall() for name in shown]

    before = settings()
    ackflow.within(db).push("orders", 1)
    assert settings() == before
    with pytest.raises(InvalidArgument):
        ackflow.within(db).push("", 1)
    assert settings() == before
    db.commit()
    assert [m.data for m in q.pop("orders")] == [1]


def test_what_cannot_be_safe_is_refused_with_a_sentence(
    q: Session, db: Db, postgres_url: str
) -> None:
    db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(InvalidArgument, match="read committed"):
        ackflow.within(db).push("orders", 1)
    db.rollback()
    db.isolation_level = None
    with pytest.raises(NotADatabase, match="no queue in the schema nowhere"):
        ackflow.within(db, schema="nowhere").push("orders", 1)
    with pytest.raises(psycopg.Error):
        db.execute("select nothing")
    with pytest.raises(InvalidArgument, match="roll it back"):
        ackflow.within(db).push("orders", 1)
    db.rollback()
    with psycopg.connect(postgres_url, autocommit=True) as plain:
        with pytest.raises(InvalidArgument, match="autocommit"):
            ackflow.within(plain).push("orders", 1)
        with plain.transaction():
            ackflow.within(plain).push("orders", 2)
    assert [m.data for m in q.pop("orders", batch=9)] == [2]
    with pytest.raises(InvalidArgument, match="not an engine"):
        ackflow.within(sqlalchemy.create_engine("postgresql+psycopg://"))


def test_a_deadlock_between_two_transactions_ends_one_of_them(
    q: Session, db: Db, postgres_url: str
) -> None:
    """One holds a row and waits for the queue, the other holds the queue and waits for the row."""
    add(db, "row")
    db.commit()
    failed: list[Exception] = []
    with psycopg.connect(postgres_url) as other:
        other.execute("update my_orders set note = 'other'")
        ackflow.within(db).push("orders", "db")

        def wait_for_the_queue() -> None:
            try:
                ackflow.within(other).push("orders", "other")
                other.commit()
            except AckflowError as error:
                failed.append(error)
                other.rollback()

        thread = threading.Thread(target=wait_for_the_queue)
        thread.start()
        try:
            db.execute("update my_orders set note = 'db'")
            db.commit()
        except psycopg.errors.DeadlockDetected as error:
            failed.append(error)
            db.rollback()
        thread.join()
    assert len(failed) == 1
    assert isinstance(failed[0], StorageBusy | psycopg.errors.DeadlockDetected)
    (message,) = q.pop("orders", batch=9)
    assert notes(db) == [message.data]


def test_sqlalchemy_sessions_and_connections_take_messages_along(
    q: Session, db: Db, postgres_url: str
) -> None:
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    base = orm.declarative_base()

    class Order(base):  # type: ignore[misc, valid-type]
        __tablename__ = "my_orders"
        id = sqlalchemy.Column(sqlalchemy.BigInteger, primary_key=True)
        note = sqlalchemy.Column(sqlalchemy.Text)

    with orm.Session(engine) as session, session.begin():
        session.add(Order(note="session"))
        ackflow.within(session).push("orders", "session")
    with contextlib.suppress(KeyError), orm.Session(engine) as session, session.begin():
        session.add(Order(note="lost"))
        session.flush()
        ackflow.within(session).push("orders", "lost")
        raise KeyError
    with engine.begin() as connection:
        connection.execute(sqlalchemy.insert(Order).values(note="connection"))
        ackflow.within(connection).push("orders", "connection")
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as plain,
        pytest.raises(InvalidArgument, match="autocommit"),
    ):
        ackflow.within(plain).push("orders", 1)
    engine.dispose()
    assert notes(db) == ["session", "connection"]
    assert [m.data for m in q.pop("orders", batch=9)] == ["session", "connection"]


KILLED = """
import sys, time, psycopg, ackflow
db = psycopg.connect(sys.argv[1])
db.execute("insert into my_orders (note) values ('killed')")
ackflow.within(db).push("orders", "killed")
print("pushed", flush=True)
time.sleep(60)
"""


def test_a_process_killed_between_push_and_commit_leaves_nothing(
    q: Session, db: Db, postgres_url: str
) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, postgres_url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"pushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    q.push("orders", "after")
    assert [m.data for m in q.pop("orders", batch=9)] == ["after"]
    assert notes(db) == []


WRITER = """
import sys, psycopg, ackflow
db = psycopg.connect(sys.argv[1])
for n in range(40):
    db.execute("insert into my_orders (note) values (%s)", (f"{sys.argv[2]} {n}",))
    ackflow.within(db).push("orders", f"{sys.argv[2]} {n}")
    db.rollback() if n % 5 == 0 else db.commit()
"""


@pytest.mark.outer
def test_two_writers_and_two_brokers_lose_nothing_and_agree_with_the_rows(
    q: Session, db: Db, postgres_url: str
) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, postgres_url, name])
        for name in ("one", "two")
    ]
    got: list[str] = []
    pushed = 0
    with ackflow.connect(postgres_url, upkeep=False) as other:
        while len(got) < 64 + pushed or any(writer.poll() is None for writer in writers):
            if pushed < 20:
                (q, other)[pushed % 2].push("orders", f"broker {pushed}")
                pushed += 1
            broker = (q, other)[len(got) % 2]
            batch = broker.pop("orders", batch=7, wait=0.1)
            got += [m.data for m in batch]
            broker.ack(batch)
            assert all(writer.poll() in (None, 0) for writer in writers)
    rows = notes(db)
    assert sorted(got) == sorted([*rows, *(f"broker {n}" for n in range(20))])
    counts = q.group_stats("orders").counts
    assert (counts.done, counts.ready, counts.leased) == (84, 0, 0)
    left = "select from ackflow.writes group by fence, broker having count(*) > 1"
    assert not db.execute(left).fetchall(), "each writer removes its last row, or the next one does"


LOOP = """
import itertools, sys, psycopg, ackflow
db = psycopg.connect(sys.argv[1])
print("up", flush=True)
for n in itertools.count():
    note = f"{sys.argv[2]} {n}"
    db.execute("insert into my_orders (note) values (%s)", (note,))
    ackflow.within(db).push("orders", note)
    db.rollback() if n % 3 == 0 else db.commit()
"""


@pytest.mark.outer
def test_writers_that_are_killed_anywhere_leave_as_many_rows_as_messages(
    q: Session, db: Db, postgres_url: str
) -> None:
    got: list[str] = []
    for run in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, postgres_url, str(run)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        until = time.monotonic() + 0.4 + run * 0.037
        while time.monotonic() < until:
            batch = q.pop("orders", batch=50, wait=0.05)
            got += [message.data for message in batch]
            q.ack(batch)
        process.kill()
        process.wait()
        process.stdout.close()
    q.push("last", 1)  # the server has ended the last transaction
    while batch := q.pop("orders", batch=1_000):
        got += [message.data for message in batch]
        q.ack(batch)
    rows = notes(db)
    assert got == rows
    assert len(rows) > 10


def test_a_connection_that_waits_for_the_lock_too_long_gives_up_and_can_go_on(
    q: Session, db: Db, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as other:
        ackflow.within(other).push("orders", "other")
        add(db, "row")
        db.execute("set local lock_timeout = '200ms'")
        with pytest.raises(StorageBusy, match="roll back and try again"):
            ackflow.within(db).push("orders", "mine")
        other.commit()
    ackflow.within(db).push("orders", "mine")
    db.commit()
    assert notes(db) == ["row"]
    assert [m.data for m in q.pop("orders", batch=9)] == ["other", "mine"]


def test_a_connection_without_synced_commits_syncs_this_one(q: Session, db: Db) -> None:
    db.execute("set synchronous_commit = off")
    db.commit()
    ackflow.within(db).push("orders", 1)
    (row,) = db.execute("show synchronous_commit").fetchall()
    assert row["synchronous_commit"] == "on"
    db.commit()
    (row,) = db.execute("show synchronous_commit").fetchall()
    assert row["synchronous_commit"] == "off"


@pytest.mark.parametrize("schema", ["Other", 'a"b', "", "a" * 64])
def test_a_bad_name_of_a_schema_is_refused(db: Db, schema: str) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        ackflow.within(db, schema=schema)


@pytest.mark.outer
def test_a_transaction_that_is_left_open_after_a_push_is_ended_by_a_broker_that_waits(
    q: Session, postgres_url: str
) -> None:
    forgotten = psycopg.connect(postgres_url)
    ackflow.within(forgotten).push("orders", "forgotten")
    q.push("orders", "broker")
    assert [m.data for m in q.pop("orders", batch=9)] == ["broker"]
    with pytest.raises(psycopg.OperationalError):
        forgotten.commit()
    forgotten.close()
