"""Which brokers have a database open: their rows, renewals, ends, and wrong clocks."""

import os
import socket
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker import presence
from ackflow.broker.presence import FIRST_SECONDS, RENEW_SECONDS, Identity
from ackflow.model import BrokerInfo

from ..conftest import Open

on_stores = pytest.mark.parametrize("open_session", ["file", "postgres"], indirect=True)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.every_store


def a_round(*sessions: Session) -> None:
    for session in sessions:
        session._broker._round()  # type: ignore[attr-defined]


def names(session: Session) -> list[str]:
    return [one.name for one in session.brokers()]


def rows(session: Session) -> int:
    found: Any = session.broker.look(presence._records)
    return len(found)


@on_stores
def test_a_broker_is_listed_once_it_has_been_open_for_two_seconds(
    open_session: Open, clock: VirtualClock
) -> None:
    first, second = open_session(), open_session()
    a_round(first, second)
    assert first.brokers() == []
    clock.advance(FIRST_SECONDS)
    a_round(first)
    assert len(second.brokers()) == 1
    clock.advance(1)
    a_round(second)
    found = second.brokers()
    assert len(found) == 2
    assert found == first.brokers()
    one = found[0]
    assert (one.host, one.pid, one.version) == (
        socket.gethostname(), os.getpid(), ackflow.__version__
    )  # fmt: skip
    assert 1.9 < (one.seen_at - one.started_at).total_seconds() < 3.1


@on_stores
def test_a_closed_broker_is_not_listed_any_more(open_session: Open, clock: VirtualClock) -> None:
    first, second = open_session(), open_session()
    clock.advance(FIRST_SECONDS)
    a_round(first, second)
    first.close()
    assert len(second.brokers()) == 1
    assert rows(second) == 1


@on_stores
def test_a_killed_broker_is_listed_for_a_minute_and_the_next_renewal_deletes_its_row(
    open_session: Open, clock: VirtualClock
) -> None:
    killed, other = open_session(), open_session()
    clock.advance(FIRST_SECONDS)
    a_round(killed, other)
    for _ in range(2):
        clock.advance(RENEW_SECONDS)
        a_round(other)
    assert len(names(other)) == 2
    clock.advance(RENEW_SECONDS)
    assert len(names(other)) == 1
    assert rows(other) == 2
    a_round(other)
    assert rows(other) == 1


@on_stores
def test_one_of_the_brokers_runs_upkeep(open_session: Open, clock: VirtualClock) -> None:
    first, second = open_session(), open_session()
    clock.advance(FIRST_SECONDS)
    first.push("jobs", 1)
    first.pop("jobs", lease_seconds=1)
    clock.advance(2)
    a_round(first, second)
    assert sorted(one.upkeep for one in first.brokers()) == [False, True]


def test_a_row_from_a_wrong_clock_is_not_listed_and_the_next_renewal_deletes_it(
    clock: VirtualClock,
) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        clock.advance(FIRST_SECONDS)
        a_round(q)
        for away in (3_600.0, -3_600.0):

            def write_as_of(tx: Any, away: float = away) -> None:
                now, tx.now = tx.now, tx.now + int(away * 1e6)
                presence.announce(tx, "other", Identity("serve", "host", 1, "0"), 0)
                tx.now = now

            q.broker.write(write_as_of)  # type: ignore[attr-defined]
            assert names(q) == []
            clock.advance(RENEW_SECONDS)
            a_round(q)
            assert names(q) == [q.broker._name]  # type: ignore[attr-defined]
            assert rows(q) == 1


def test_the_number_of_rows_that_are_read_is_bounded(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        for n in range(presence.MOST + 5):
            q.broker.write(  # type: ignore[attr-defined]
                lambda tx, n=n: presence.announce(tx, f"{n:04}", Identity("a", "b", n, "0"), 0)
            )
        assert len(q.brokers()) == presence.MOST


def test_a_process_with_several_databases_is_one_broker() -> None:
    here, other = (
        BrokerInfo(name, "serve", "host", pid, "1", NOW, NOW, False)
        for name, pid in (("a", 1), ("b", 2))
    )
    again = BrokerInfo("c", "serve", "host", 1, "1", NOW, NOW, False)
    merged = presence._merge([[here], [again, other]], ())
    assert [one.name for one in merged] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["/usr/bin/ackflow", "serve", "--db", "x"], "ackflow serve"),
        (["ackflow", "--token=secret"], "ackflow"),
        (["/src/ackflow/__main__.py", "work", "app:worker"], "ackflow work"),
        (["/srv/shop/billing.py", "secret"], "billing.py"),
        (["", "secret"], "python"),
    ],
)
def test_a_broker_names_its_program_and_none_of_its_arguments(
    arguments: list[str], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert presence.identity().program == program
