"""Fixtures shared by all tests: a virtual clock and a session on every kind of store."""

import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Session, VirtualClock

from .postgres import server as postgres
from .running import Running

Open = Callable[..., Session]


def pytest_configure() -> None:
    """Processes that tests start must receive Ctrl-C, even when pytest runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m selects tests and before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put every test into a ring, and all tests that start Spark into one test process.

    A Spark session is expensive, and two at once are slower than one after the other. Of the tests
    that start Spark, the inner ring runs those with the marker inner.
    """
    soak_is_selected = "soak" in (config.option.markexpr or "")
    for item in items:
        if starts_spark(item):
            item.add_marker(pytest.mark.xdist_group("spark"))
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


def _repeats_semantics(item: pytest.Item) -> bool:
    """Whether a test runs in the inner ring on the memory store, and here on another one.

    The broker's semantics are written once, so the memory store proves them. Tests of what a store
    or a transport can change carry the marker every_store.
    """
    callspec = getattr(item, "callspec", None)
    store = callspec.params.get("open_session", "memory") if callspec else "memory"
    return store != "memory" and item.get_closest_marker("every_store") is None


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


@pytest.fixture(params=["memory", "file", "http", "postgres"])
def open_session(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> Iterator[Open]:
    """Open sessions on one database of the kind under test; all are closed at the end."""
    opened: list[Session] = []
    url = ":memory:" if request.param == "memory" else str(tmp_path / "test.db")
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    running = None
    if request.param == "http":
        running = Running(ackflow.connect(":memory:", clock=clock, upkeep=False))
        url = running.url

    def open_one(**options: object) -> Session:
        settings = {"clock": clock, "upkeep": False, "consumer": "tester", **options}
        opened.append(ackflow.connect(url, **settings))  # type: ignore[arg-type]
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
