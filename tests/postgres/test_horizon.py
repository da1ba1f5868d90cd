"""PostgreSQL: another session holds an old snapshot, so that no dead row version can be removed.

A reporting query, a dump or a forgotten session does this (the xmin horizon is pinned). The work of
a verb must not grow with the number of dead row versions.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

import ackflow
from ackflow import Session

from . import server as servers

EARLY, LATE, COUNTED = 100, 2_000, 200
SOAK_SECONDS = 600
WINDOW_SECONDS = 30
BLOCKS = """select sum(coalesce(hits, 0) + coalesce(reads, 0))::bigint
    from pg_stat_get_backend_io(%s) where object = 'relation'"""


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """A session that reads once and then stays idle in its transaction."""
    with psycopg.connect(url) as db:
        db.execute("set transaction isolation level repeatable read")
        db.execute("select 1 from pg_class").fetchall()
        yield
        db.rollback()


def cycle(q: Session, number: int, partitions: int) -> None:
    """Push a message, pop one and ack it."""
    q.push("jobs", number, partition=str(number % partitions))
    q.ack(q.pop("jobs"))


def fill(q: Session, partitions: int) -> None:
    """Push two messages to each partition: all have work at any time, and are served in turn."""
    for number in range(2 * partitions):
        q.push("jobs", number, partition=str(number % partitions))


def blocks_read(q: Session, db: psycopg.Connection[Any]) -> int:
    """Return how many blocks of tables and indexes the writer of a session has visited."""
    store: Any = q.broker.store
    store._writer.execute("select pg_stat_force_next_flush()")
    row = db.execute(BLOCKS, (store._writer.db.info.backend_pid,)).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("brokers", [1, pytest.param(2, marks=pytest.mark.outer)])
@pytest.mark.parametrize("partitions", [1, 20])
def test_a_cycle_reads_as_much_however_many_versions_lie_dead(
    postgres_url: str, partitions: int, brokers: int
) -> None:
    """Blocks are counted, as times are not reliable on a loaded machine."""
    counts = {}
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(ackflow.connect(postgres_url, upkeep=False)) for _ in range(brokers)
        ]
        db = stack.enter_context(psycopg.connect(postgres_url, autocommit=True))
        if db.info.server_version < 180_000:
            pytest.skip("an older server does not count the blocks of one backend")
        fill(sessions[0], partitions)
        for number in range(20 * brokers):  # every statement is prepared
            cycle(sessions[number % brokers], number, partitions)
        with old_snapshot(postgres_url):
            for number in range(LATE + COUNTED):
                if number in (EARLY - 50, LATE - 50):  # as autovacuum does, at any time
                    db.execute("analyze")
                if number in (EARLY, EARLY + COUNTED, LATE):
                    counts[number] = sum(blocks_read(q, db) for q in sessions)
                cycle(sessions[number % brokers], number, partitions)
            end = sum(blocks_read(q, db) for q in sessions)
    early, late = counts[EARLY + COUNTED] - counts[EARLY], end - counts[LATE]
    assert late < 1.4 * early, (early / COUNTED, late / COUNTED)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("partitions", [1, 20])
def test_ten_minutes_of_work_beside_an_old_snapshot(partitions: int) -> None:
    """The last thirty seconds do at least 0.7 of the cycles of the first thirty."""
    with servers.running() as server, ackflow.connect(server.url) as q:
        fill(q, partitions)
        with old_snapshot(server.url):
            begin, number = time.monotonic(), 0
            done = [0] * (SOAK_SECONDS // WINDOW_SECONDS)
            while (past := time.monotonic() - begin) < SOAK_SECONDS:
                cycle(q, number, partitions)
                number += 1
                done[int(past) // WINDOW_SECONDS] += 1
    print([round(n / WINDOW_SECONDS, 1) for n in done])
    assert done[-1] >= 0.7 * done[0], done
