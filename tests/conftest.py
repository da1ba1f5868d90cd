"""Fixtures shared by all tests: a virtual clock and a session on every kind of store."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

import ackflow
from ackflow import Session, VirtualClock, ids

from .postgres import server as postgres
from .running import Running

Open = Callable[..., Session]
FIRST_STORE = {"open_session": "memory", "cli": "file"}  # where a test runs in the inner ring


def pytest_configure() -> None:
    """Processes that tests start must receive Ctrl-C, even when pytest runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m selects tests and before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put every test into a ring, and the tests that start Spark into two groups.

    Tests that share the Spark session run in one test process. Those that start Spark in processes
    of their own are a group as well, which another test process runs meanwhile: large groups start
    first, and none of the processes is left with all of Spark at the end. Of the tests that start
    Spark, the inner ring runs those with the marker inner.
    """
    items[:] = [item for item in items if not _needs_one_database(item)]
    soak_is_selected = "soak" in (config.option.markexpr or "")
    for item in items:
        if starts_spark(item):
            shared = "spark" in getattr(item, "fixturenames", [])
            group = "spark" if shared else "spark processes"
            item.add_marker(pytest.mark.xdist_group(group))
            if item.get_closest_marker("inner") is None:
                item.add_marker(pytest.mark.outer)
        if _repeats_semantics(item):
            item.add_marker(pytest.mark.outer)
        if item.get_closest_marker("soak") and not soak_is_selected:
            item.add_marker(pytest.mark.skip(reason="a soak test; run with -m soak"))


def starts_spark(item: pytest.Item) -> bool:
    """Return whether a test uses the shared Spark session or starts Spark in other processes."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return "spark" in fixtures or item.get_closest_marker("spark") is not None


def _needs_one_database(item: pytest.Item) -> bool:
    """Whether a test, on several databases, touches two of them in one transaction or key."""
    callspec = getattr(item, "callspec", None)
    several = callspec is not None and callspec.params.get("open_session") == "several"
    return several and item.get_closest_marker("one_database") is not None


def _repeats_semantics(item: pytest.Item) -> bool:
    """Whether a test runs in the inner ring on one store, and here on another one.

    The broker's semantics are written once, so the memory store proves them, and a file proves the
    command line. Tests of what a store or a transport can change carry the marker every_store.
    """
    callspec = getattr(item, "callspec", None)
    given = callspec.params if callspec else {}
    repeats = any(given.get(fixture, store) != store for fixture, store in FIRST_STORE.items())
    return repeats and item.get_closest_marker("every_store") is None


@pytest.fixture(autouse=True)
def _log_records_propagate() -> None:
    """Undo the logging configuration of an earlier test, so that caplog sees every record."""
    for name in ("ackflow", "ackflow.server", "ackflow.dead", "ackflow.worker"):
        logger = logging.getLogger(name)
        logger.propagate, logger.disabled = True, False
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A server for every test that does not kill it; nothing on it outlives the tests."""
    with postgres.running("fsync=off", "full_page_writes=off") as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> str:
    """An empty database on PostgreSQL."""
    postgres.empty(postgres_server.url)
    return postgres_server.url


@pytest.fixture(params=["memory", "file", "http", "postgres", "several"])
def open_session(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> Iterator[Open]:
    """Open sessions on one database of the kind under test; all are closed at the end."""
    opened: list[Session] = []
    url: str | list[str] = ":memory:" if request.param == "memory" else str(tmp_path / "test.db")
    defaults: dict[str, object] = {"clock": clock, "upkeep": False, "consumer": "tester"}
    if request.param == "several":  # two databases behind one session
        url = [str(tmp_path / "one.db"), str(tmp_path / "two.db")]
        # The ids decide where a queue lives: these put `in` and `out` into different databases.
        stores = chain((5, 6), iter(ids.new_store, None))
        request.getfixturevalue("monkeypatch").setattr(ids, "new_store", lambda: next(stores))
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        if without := os.environ.get("ACKFLOW_TEST_WITHOUT"):  # a capability of the server
            url += f"?without={without}"
    running = None
    if request.param == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    def open_one(**options: object) -> Session:
        opened.append(ackflow.connect(url, **{**defaults, **options}))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()
    if running is not None:
        running.stop()
        running.session.close()


@pytest.fixture
def q(open_session: Open) -> Session:
    """A session with a virtual clock and no upkeep of its own."""
    return open_session()
