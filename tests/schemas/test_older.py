"""Databases made by the code of each older schema (older.py): opened by today's they hold what they
held, whatever state it was in, and work goes on; also when opening them was killed on the way."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from ackflow import Session
from ackflow.store import migrate

from ..postgres.server import Server
from ..stateful.recount import Rows, check_rows
from . import older

HOME = Path(__file__).parent
EXPECTED = json.loads((HOME / "expected.json").read_text())
# Today's schema has a database too, for the day when there is a newer one.
NUMBERS = {
    folder: sorted(int(file.stem) for file in (HOME / folder).glob("*.gz"))
    for folder in ("sqlite", "postgres")
}
OLDER = {
    folder: [number for number in numbers if number < migrate.shipped(folder)[-1][0]]
    for folder, numbers in NUMBERS.items()
}
# Schemas that came together with a later one: no version has ever left a database in them.
NEVER_NEWEST = {"sqlite": {2}, "postgres": {6}}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", older.KEY)


def content(folder: str, number: int) -> bytes:
    return gzip.decompress((HOME / folder / f"{number}.gz").read_bytes())


@contextmanager
def files(number: int, count: int) -> Iterator[list[str]]:
    """So many copies of a file of an older schema, in memory: they are synced often."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        copies = [Path(folder) / f"{copy}.db" for copy in range(count)]
        for copy in copies:
            copy.write_bytes(content("sqlite", number))
        yield [str(copy) for copy in copies]


@contextmanager
def database(server: Server, number: int) -> Iterator[str]:
    """A database of an older schema on a server."""
    url = server.url.rpartition("/")[0] + "/older"
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("create database older")
        try:
            with psycopg.connect(url, autocommit=True) as new:
                new.execute(content("postgres", number))
            yield url
        finally:
            db.execute("drop database older with (force)")


def made(folder: str, number: int) -> older.Made:
    found: older.Made = json.loads((HOME / folder / f"{number}.json").read_text())
    return found


def expected(what: str, schema: int) -> Any:
    return older.without(EXPECTED[what], schema)


def plain(data: object) -> Any:
    return json.loads(json.dumps(data))


def recount(q: Session) -> None:
    q.broker.look(lambda tx: check_rows(Rows(tx)))


def check_all(url: str, tokens: older.Made) -> None:
    """What was there is there, and work goes on as it would have in the older version."""
    session, clock = older.open_at(url, tokens["after"])
    with session as q:
        assert plain(older.seen(q, tokens)) == expected("seen", tokens["schema"])
        recount(q)
        assert plain(older.go_on(q, clock, tokens)) == expected("did", tokens["schema"])
        recount(q)


def check_interrupted(urls: list[str], tokens: older.Made, step: int) -> int:
    """Kill processes while they open databases, or one again and again; answers with how many."""
    script = str(HOME / "interrupted.py")
    ran = subprocess.run(
        [sys.executable, script, str(step), *urls], check=True, stdout=subprocess.PIPE
    )
    killed = int(ran.stdout)
    for url in set(urls[: killed + 1]):
        session, _ = older.open_at(url, tokens["after"])
        with session as q:
            assert plain(older.seen(q, tokens)) == expected("seen", tokens["schema"])
            recount(q)
    check_all(urls[killed // 2], tokens)
    return killed


@pytest.mark.parametrize("folder", ["sqlite", "postgres"])
def test_there_is_a_database_of_every_older_schema(folder: str) -> None:
    older_ones = {number for number, _ in migrate.shipped(folder)[:-1]}
    assert older_ones - set(NUMBERS[folder]) <= NEVER_NEWEST[folder]


@pytest.mark.parametrize("number", NUMBERS["sqlite"])
def test_a_file_of_an_older_schema_holds_what_it_held_and_work_goes_on(number: int) -> None:
    with files(number, 1) as (path,):
        check_all(path, made("sqlite", number))


@pytest.mark.parametrize("number", OLDER["sqlite"])
def test_a_migration_that_is_killed_is_done_when_the_file_is_opened_again(number: int) -> None:
    step = 5 if number == 1 else 9  # it has all of the others
    with files(number, 30) as paths:
        assert check_interrupted(paths, made("sqlite", number), step) > 2


@pytest.mark.soak
@pytest.mark.parametrize("number", OLDER["sqlite"])
def test_a_migration_may_be_killed_before_any_of_its_statements(number: int) -> None:
    with files(number, 200) as paths:
        assert 20 < check_interrupted(paths, made("sqlite", number), step=1) < 200


@pytest.mark.parametrize("number", NUMBERS["postgres"])
def test_an_older_schema_on_postgres_holds_what_it_held_and_work_goes_on(
    postgres_server: Server, number: int
) -> None:
    with database(postgres_server, number) as url:
        check_all(url, made("postgres", number))


@pytest.mark.parametrize("number", OLDER["postgres"])
def test_a_migration_on_postgres_that_is_killed_is_done_by_the_next_broker(
    postgres_server: Server, number: int
) -> None:
    with database(postgres_server, number) as url:
        assert 5 < check_interrupted([url] * 20, made("postgres", number), step=1) < 20
