"""PostgreSQL: schema creation on first use, and databases that are refused."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

import ackflow
from ackflow.errors import InvalidArgument, NotADatabase, SchemaTooNew, StorageAway
from ackflow.store.postgres import connection, store
from ackflow.store.tx import Tx

from . import server as servers


def test_each_schema_is_a_database_of_its_own(postgres_url: str) -> None:
    with (
        ackflow.connect(postgres_url, upkeep=False) as q,
        ackflow.connect(f"{postgres_url}?schema=elsewhere", upkeep=False) as other,
    ):
        q.push("jobs", 1)
        assert other.queues() == []
        assert q.broker.store.id != other.broker.store.id


def test_a_read_that_ends_after_the_close_leaves_no_connection_open(postgres_url: str) -> None:
    q = ackflow.connect(postgres_url, upkeep=False)
    opened = q.broker.store
    assert isinstance(opened, store.PostgresStore)
    entered, closed = threading.Event(), threading.Event()

    def body(tx: Tx) -> None:
        entered.set()
        closed.wait()

    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(opened.read, body)
        entered.wait()
        q.close()
        closed.set()
        read.result()
    assert opened._readers == []


def test_many_may_make_the_same_new_schema_at_once(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("drop schema if exists brand_new cascade")
    url = f"{postgres_url}?schema=brand_new"
    with ThreadPoolExecutor(6) as pool:
        sessions = list(pool.map(lambda _: ackflow.connect(url, upkeep=False), range(6)))
    assert len({session.broker.store.id for session in sessions}) == 1
    for session in sessions:
        session.close()


def test_every_statement_fits_the_schema(postgres_url: str) -> None:
    with ackflow.connect(postgres_url, upkeep=False):
        pass
    place = connection.DatabaseUrl(postgres_url)
    with place.open() as db:
        for name, sql in connection.statements().items():
            db.execute(f"prepare {name} as {sql}".encode())


@pytest.fixture
def other_schema(postgres_url: str) -> Iterator[str]:
    """The URL of an empty schema of its own, which is dropped with the test."""
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("drop schema if exists other cascade")
        db.execute("create schema other")
    yield f"{postgres_url}?schema=other"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("drop schema other cascade")


def test_a_schema_of_another_program_is_refused_and_left_as_it_is(
    other_schema: str, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("create table other.cats (name text)")
        with pytest.raises(NotADatabase, match="another program"):
            ackflow.connect(other_schema)
        found = db.execute("select tablename from pg_tables where schemaname = 'other'")
        assert found.fetchall() == [("cats",)]


def test_a_newer_schema_is_refused_with_both_numbers(other_schema: str, postgres_url: str) -> None:
    ackflow.connect(other_schema, upkeep=False).close()
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("update other.meta set value = '999' where key = 'schema'")
    with pytest.raises(SchemaTooNew, match="999"):
        ackflow.connect(other_schema)


def test_a_broker_says_so_when_a_newer_version_migrates_its_schema(
    other_schema: str, postgres_url: str
) -> None:
    with ackflow.connect(other_schema, upkeep=False) as q:
        q.push("q", 1)
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute("update other.meta set value = '999' where key = 'schema'")
            db.execute("insert into other.writes select max(n) + 1, 0 from other.writes")
        for _ in range(2):
            with pytest.raises(SchemaTooNew, match=r"999.*upgrade Ackflow"):
                q.push("q", 2)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/db?schema=No%20Name",
        "postgresql://localhost/db?schema=",
        "postgresql://localhost/db?colour=red",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        ackflow.connect(url)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StorageAway, match=r"no connection to jobs on 127\.0\.0\.1") as told:
        ackflow.connect("postgresql://me:secret@127.0.0.1:1/jobs?connect_timeout=1")
    assert "secret" not in str(told.value)


def test_a_database_that_is_not_there_is_said_so(postgres_url: str) -> None:
    with pytest.raises(StorageAway, match="no_such_database"):
        ackflow.connect(postgres_url.rpartition("/")[0] + "/no_such_database")


def test_a_backup_is_left_to_the_tools_of_the_server(postgres_url: str, tmp_path: Path) -> None:
    with (
        ackflow.connect(postgres_url, upkeep=False) as q,
        pytest.raises(InvalidArgument, match="pg_dump -n ackflow"),
    ):
        q.backup(tmp_path / "copy.db")


def test_connect_waits_for_a_server_that_restarts() -> None:
    with servers.running("fsync=off") as mortal, ThreadPoolExecutor(1) as pool:
        mortal.kill()
        opening = pool.submit(ackflow.connect, mortal.url, upkeep=False)
        time.sleep(0.3)
        mortal.start()
        with opening.result(30) as q:
            q.push("jobs", 1)
            assert q.pop("jobs")[0].data == 1


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        ('connection to server at "h", port 1 failed: Connection refused', True),
        ('connection to server at "h" failed: FATAL:  the database system is starting up', True),
        ('connection to server at "h" failed: FATAL:  sorry, too many clients already', True),
        ('connection to server at "h" failed: session is read-only', True),
        ('failed: FATAL:  password authentication failed for user "me"', False),
        ('failed: FATAL:  database "starting" does not exist', False),
        ("failed: fe_sendauth: no password supplied", False),
        ("failed to resolve host 'h': [Errno -2] Name or service not known", False),
        ("failed\nAll failures were:\n- host: a: Connection refused\n- host: b: FATAL:  no", True),
        ("failed\nAll failures were:\n- host: a: FATAL:  no\n- host: b: FATAL:  no", False),
    ],
)
def test_only_what_may_pass_is_waited_for(message: str, passes: bool) -> None:
    assert connection.is_lost(psycopg.OperationalError(message)) == passes


def test_an_unknown_role_is_refused_at_once(postgres_url: str) -> None:
    began = time.monotonic()
    with pytest.raises(StorageAway, match="no_such_role"):
        ackflow.connect(postgres_url.replace("postgres@", "no_such_role@"))
    assert time.monotonic() - began < store.AWAY_SECONDS / 2
