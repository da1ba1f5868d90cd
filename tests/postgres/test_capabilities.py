"""PostgreSQL with one of its capabilities switched off, as for engines that lack it."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from unittest.mock import MagicMock

import msgspec
import psycopg
import pytest

import ackflow
from ackflow import Session
from ackflow.errors import InvalidArgument, StorageBusy
from ackflow.store.postgres import homes, lease_ids
from ackflow.store.postgres.capabilities import Capabilities
from ackflow.store.postgres.connection import statements
from ackflow.store.postgres.fences import lock_key
from ackflow.store.protocol import Reach
from ackflow.store.tx import Tx

NAMES = [field.name for field in msgspec.structs.fields(Capabilities)]
SELECTED = "push_and_pop or settle or transactions or fencing or values_that_end or waiting"


def test_an_unknown_capability_is_refused(postgres_url: str) -> None:
    with pytest.raises(InvalidArgument, match="without=locks is none of advisory_locks"):
        ackflow.connect(f"{postgres_url}?without=locks")


def test_brokers_that_lock_in_another_way_are_refused(postgres_url: str) -> None:
    with (
        ackflow.connect(postgres_url, upkeep=False),
        pytest.raises(InvalidArgument, match="the same `without`"),
    ):
        ackflow.connect(f"{postgres_url}?without=advisory_locks")


@pytest.mark.parametrize("without", [*NAMES, "advisory_locks,skip_locked"])
def test_two_brokers_share_the_work_without_it(postgres_url: str, without: str) -> None:
    url = f"{postgres_url}?without={without}"
    with ackflow.connect(url) as q, ackflow.connect(url) as other:
        with ThreadPoolExecutor(8) as pool:
            for n in range(120):
                pool.submit((q, other)[n % 2].push, f"queue {n % 3}", n)

        def work(session: Session) -> list[int]:
            found = []
            for n in range(3):
                while batch := session.pop(f"queue {n}", batch=7):
                    found += [message.data for message in batch]
                    session.ack(batch)
            return found

        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(work, [q, other, q, other]))
        assert sorted(chain.from_iterable(parts)) == list(range(120))
        with q.transaction() as together:
            together.push("one", 1)
            together.push("two", 2)
            together.put("key", "value")
        assert [other.pop(name)[0].data for name in ("one", "two")] == [1, 2]
        assert other.value("key") is not None


def test_without_notify_a_push_wakes_a_pop_of_another_broker(postgres_url: str) -> None:
    url = f"{postgres_url}?without=notify"
    with ackflow.connect(url) as q, ackflow.connect(url) as other, ThreadPoolExecutor(1) as pool:
        q.configure("jobs")
        waiting = pool.submit(other.pop, "jobs", wait=30)
        while not other.broker.waiters.present.is_set():  # type: ignore[attr-defined]
            time.sleep(0.001)
        began = time.monotonic()
        q.push("jobs", 1)
        assert len(waiting.result(30)) == 1
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("rows", [False, True])
def test_a_queue_that_is_locked_stops_no_other_queue_of_the_broker(
    postgres_url: str, rows: bool
) -> None:
    """A group with verbs of several queues leaves out what is not free, and does it later."""
    url = f"{postgres_url}?without=advisory_locks" if rows else postgres_url
    with ackflow.connect(url, upkeep=False) as q:
        ids = []
        for name in ("free", "locked"):
            q.push(name, 0)
            q.pop(name)
            (id,) = q.broker.look(lambda tx, name=name: [tx.queue(name).id])  # type: ignore[misc]
            ids.append(id)
        with psycopg.connect(postgres_url) as holder, ThreadPoolExecutor(2) as pool:
            if rows:
                holder.execute("select from ackflow.fences where id = %s for update", (ids[1],))
            else:
                key = lock_key("ackflow", ids[1])
                holder.execute("select pg_advisory_xact_lock(%s)", (key,))
            writer = q.broker.writer  # type: ignore[attr-defined]
            with writer.exclusively():  # both are in one group, the free queue first
                first = pool.submit(q.push, "free", 1)
                while len(writer._queue) < 1:
                    time.sleep(0.001)
                second = pool.submit(q.push, "locked", 1)
                while len(writer._queue) < 2:
                    time.sleep(0.001)
            first.result(10)
            assert not second.done()
            holder.rollback()
            second.result(10)


def test_the_row_of_a_lock_that_a_crash_has_lost_is_made_again(postgres_url: str) -> None:
    """It was inserted by a commit that was not synced; both brokers remember it."""
    url = f"{postgres_url}?without=advisory_locks&options=-c%20lock_timeout%3D200ms"
    with ackflow.connect(url, upkeep=False) as q, ackflow.connect(url, upkeep=False) as other:
        for session in (q, other, q, other):
            session.push("jobs", 1)
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute("delete from ackflow.fences where id > 0")

        def hold(_: Tx) -> None:
            with pytest.raises(StorageBusy):
                other.push("jobs", 2)

        q.broker.store.transact(hold, False, [Reach(["jobs"])])  # type: ignore[attr-defined]
        other.push("jobs", 3)


def test_a_transaction_of_a_user_finds_leases_whose_ids_are_counted_in_a_row(
    postgres_url: str,
) -> None:
    with ackflow.connect(f"{postgres_url}?without=sequences", upkeep=False) as q:
        q.push("jobs", list(range(lease_ids.LEASES_AT_ONCE + 1)))
        for _ in range(lease_ids.LEASES_AT_ONCE + 1):
            (last,) = q.pop("jobs")
        with psycopg.connect(postgres_url) as db:
            ackflow.within(db).commit(q.transaction().ack(last))
        assert q.why("jobs", last.id).state == "acked"


def test_a_broker_that_only_acks_remembers_a_limited_number_of_leases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(homes, "KNOWN", 10)
    known, channel = homes.Homes(statements()), MagicMock()
    channel.execute.side_effect = lambda _sql, args: [(homes.LEASE, "", t, 1) for t in args[1]]
    for token in range(100):
        reach = Reach(leases=[token])
        known.ask(channel, [reach])
        assert known.find(reach)
    assert len(known.leases) <= 11


@pytest.mark.outer
@pytest.mark.timeout(900)
@pytest.mark.parametrize("without", ["advisory_locks", "sequences", "functions"])
def test_selected_conformance_tests_pass_without_it(without: str) -> None:
    conformance(without, SELECTED)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("without", [*NAMES, "advisory_locks,skip_locked"])
def test_every_conformance_test_passes_without_it(without: str) -> None:
    conformance(without, "")


def conformance(without: str, selected: str) -> None:
    chosen = f"postgres and ({selected})" if selected else "postgres"
    command = [sys.executable, "-m", "pytest", "-q", "tests/conformance", "-k", chosen,
               "-m", "not soak", "-p", "no:cacheprovider"]  # fmt: skip
    environment = {**os.environ, "ACKFLOW_TEST_WITHOUT": without}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3_000:]
