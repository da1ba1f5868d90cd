"""PostgreSQL with a synchronous standby that takes over when the primary is lost."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import psycopg
import pytest

import ackflow
from ackflow.errors import LeaseLost

from . import server as servers
from .test_brokers import drained

Pair = tuple[servers.Server, servers.Server]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and its synchronous standby."""
    with servers.running() as primary, servers.running(follows=primary) as standby:
        with psycopg.connect(primary.url, autocommit=True) as db:
            db.execute("alter system set synchronous_standby_names = '*'")
            db.execute("select pg_reload_conf()")
            deadline = time.monotonic() + 30
            while not db.execute(
                "select 1 from pg_stat_replication where sync_state = 'sync'"
            ).fetchall():
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.02)
        yield primary, standby


def url(pair: Pair) -> str:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in pair)
    return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"


def test_a_push_is_confirmed_when_the_standby_has_it_and_survives_the_primary(pair: Pair) -> None:
    _, standby = pair
    with ackflow.connect(url(pair), upkeep=False) as q, ThreadPoolExecutor(1) as pool:
        q.push("jobs", 0)
        receiver = standby.process("walreceiver")
        receiver.suspend()
        try:
            push = pool.submit(q.push, "jobs", 1)
            with pytest.raises(NotYet):
                push.result(0.5)
        finally:
            receiver.resume()
        push.result(30)
    fail_over_under_load(pair)


def fail_over_under_load(pair: Pair) -> None:
    primary, standby = pair
    confirmed: set[int] = set()
    acked: set[int] = set()
    ending = threading.Event()

    def push(first: int) -> None:
        number = first
        while not ending.is_set():
            q.push("load", number)
            confirmed.add(number)
            number += 3

    def consume() -> None:
        while not ending.is_set():
            for message in other.pop("load", batch=2, wait=0.2, lease_seconds=2):
                with contextlib.suppress(LeaseLost):  # it waited while there was no server
                    message.ack(confirm=True)
                    acked.add(message.data)

    def work_on(more: int) -> None:
        before, deadline = (len(confirmed), len(acked)), time.monotonic() + 60
        while len(confirmed) < before[0] + more or len(acked) < before[1] + more:
            assert time.monotonic() < deadline, "work did not go on"
            time.sleep(0.01)

    with ackflow.connect(url(pair)) as q, ackflow.connect(url(pair)) as other:
        q.configure("load", max_deliver=None)
        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(push, first) for first in range(3)] + [pool.submit(consume)]
            try:
                work_on(30)
                primary.kill()
                with psycopg.connect(standby.url, autocommit=True) as db:
                    db.execute("select pg_promote()")
                work_on(30)
            finally:
                ending.set()
            for one in working:
                one.result(60)
        time.sleep(2.1)  # leases expire by the real clock
        left = drained(q, "load")
        assert not acked & set(left), "a confirmed ack came again"
        assert confirmed <= acked | set(left), "a confirmed push is lost"
