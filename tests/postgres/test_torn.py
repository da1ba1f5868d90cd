"""PostgreSQL: brokers that are killed and stopped, a restarted database, a pinned horizon.

Every process records what it was told; the guarantees I1 to I10 are checked on these records and on
the rows that are left.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.stateful.recount import Rows, check_rows  # isort: skip

import ackflow

from . import server as servers
from . import torn
from .test_horizon import old_snapshot

SECOND = 1_000_000_000


@pytest.fixture
def mortal() -> Iterator[servers.Server]:
    with servers.running() as server:
        yield server


class Event(NamedTuple):
    what: str
    queue: str
    number: int
    token: str
    began: int
    at: int


def events(folder: Path) -> list[Event]:
    found = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            what, queue, number, token, at = line.split(" ")
            token, _, began = token.partition("/")
            found.append(Event(what, queue, int(number), token, int(began or 0), int(at)))
    return sorted(found, key=lambda event: event.at)


class Brokers:
    """Three processes; one that is killed is started again."""

    SHARES = (3, 3), (3, 3), (2, 2)  # producers and consumers

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.running = [self._start(n) for n in range(3)]

    def _start(self, n: int) -> subprocess.Popen[bytes]:
        producers, consumers = self.SHARES[n]
        return subprocess.Popen(
            [sys.executable, "-m", torn.__name__, self._url, str(n), str(producers), str(consumers),
             str(self._folder)]
        )  # fmt: skip

    def kill(self, n: int) -> None:
        self.end(self.running[n])
        self.running[n] = self._start(n)

    def end(self, broker: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.kill(broker.pid, signal.SIGKILL)
        broker.wait()


def tear(
    server: servers.Server, folder: Path, seconds: float, stopped: float
) -> tuple[list[Event], int]:
    """Kill and stop brokers, restart the database; return what was recorded, and when that was."""
    chance = random.Random(7)
    with ackflow.connect(server.url) as q:
        for queue in (*torn.QUEUES, "out"):
            q.configure(queue, max_deliver=None)
        q.group("ordered", "g", ordering="ordered")
    with ExitStack() as stack:
        snapshot = stack.enter_context(ExitStack())
        snapshot.enter_context(old_snapshot(server.url))
        brokers = Brokers(server.url, folder)
        stack.callback(lambda: [brokers.end(one) for one in brokers.running])
        began = time.monotonic()
        os_stopped, restarted, crashed = None, False, 0
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(chance.uniform(1.0, 3.0))
            if os_stopped is None and passed > seconds * 0.2:
                os_stopped = brokers.running[2]
                os_stopped.send_signal(signal.SIGSTOP)
                continue_at = time.monotonic() + stopped
            if not restarted and passed > seconds * 0.5:
                restarted = True
                with suppress(psycopg.Error):
                    snapshot.close()
                server.kill()
                crashed = time.monotonic_ns()
                server.start()
                snapshot.enter_context(old_snapshot(server.url))
            brokers.kill(chance.randrange(2))
        assert os_stopped is not None
        time.sleep(max(0.0, continue_at - time.monotonic()))
        os_stopped.send_signal(signal.SIGCONT)
        time.sleep(3.0)
        with suppress(psycopg.Error):
            snapshot.close()
    return events(folder), crashed


def check(server: servers.Server, recorded: list[Event], crashed: int) -> None:
    tried = {e.number for e in recorded if e.what == "tried"}
    pushed = {e.number for e in recorded if e.what == "pushed"}
    acked: dict[int, Event] = {}
    leases: dict[int, list[Event]] = defaultdict(list)
    for event in recorded:
        if event.what == "acked":
            assert event.number not in acked, "I4: settled under two leases"
            acked[event.number] = event
        elif event.what == "leased":
            leases[event.number].append(event)
    for number, found in leases.items():
        done = acked.get(number)
        for one in found:
            assert number in tried
            if done is not None and one.token != done.token:
                # `began` is before the pop: what was acked before that may not come.
                assert one.began < done.at, "I2: came after a confirmed ack"
        for before, after in pairwise(found):
            # A crash of the server may lose leases that were not synced; their acks are refused.
            known = before.began > crashed or after.at < crashed
            if known and before.token != after.token and not (done and done.token == before.token):
                held = (after.at - before.began) / SECOND
                assert held >= torn.LEASE_SECONDS - 0.5, "I3: two live leases"
    time.sleep(torn.LEASE_SECONDS + 0.5)
    left: dict[str, list[int]] = defaultdict(list)
    with ackflow.connect(server.url) as q:
        for queue in (*torn.QUEUES, "out"):
            group = {"group": "g"} if queue == "ordered" else {}
            while batch := q.pop(queue, batch=500, partitions=1, **group):
                last: dict[str, int] = {}
                for message in batch:
                    if queue == "ordered":
                        assert last.get(message.partition, -1) < message.sequence, (
                            "I7: out of order"
                        )
                        last[message.partition] = message.sequence
                    left[queue].append(message.data)
                q.ack(batch)
        for queue in (*torn.QUEUES, "out"):
            assert len(set(left[queue])) == len(left[queue]), f"a message of {queue} came twice"
        here = {number for queue in torn.QUEUES for number in left[queue]}
        assert not here & acked.keys(), "I2: came after a confirmed ack"
        gone = pushed - here - acked.keys()
        # What is neither there nor confirmed as acked was acked by a process that was killed before it
        # could note that; then it was leased. What was moved is in `out`.
        for number in gone:
            assert number % 3 == 2 or leases[number], "I1: a confirmed push is lost"
            if torn.QUEUES[number % 3] == "moved":
                assert number in set(left["out"]), "I1, I8: a confirmed push is lost"
        out = set(left["out"])
        assert {n for n, e in acked.items() if e.queue == "moved"} <= out, "I8: half a transaction"
        assert not out & set(left["moved"]), "I8: half a transaction"
        for queue in (*torn.QUEUES, "out"):
            counts = q.group_stats(queue, **({"group": "g"} if queue == "ordered" else {})).counts
            assert (counts.ready, counts.leased, counts.waiting, counts.dead) == (0, 0, 0, 0)
        # I6 and I10 on the rows: what a queue got is what its group is done with.
        q.broker.store.read(lambda tx: check_rows(Rows(tx)))  # type: ignore[attr-defined]


def per_second(recorded: list[Event], first: float, last: float) -> float:
    """The rate of acks in a part of the time."""
    start, end = recorded[0].at, recorded[-1].at
    lo, hi = start + (end - start) * first, start + (end - start) * last
    return sum(e.what == "acked" and lo <= e.at < hi for e in recorded) / ((hi - lo) / SECOND)


@pytest.mark.outer
@pytest.mark.timeout(240)
def test_torn_brokers_keep_every_guarantee(mortal: servers.Server, tmp_path: Path) -> None:
    recorded, crashed = tear(mortal, tmp_path, 15.0, 12.0)
    check(mortal, recorded, crashed)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_minute_of_torn_brokers(mortal: servers.Server, tmp_path: Path) -> None:
    recorded, crashed = tear(mortal, tmp_path, 60.0, 90.0)
    early, late = per_second(recorded, 0.02, 0.12), per_second(recorded, 0.88, 0.98)
    check(mortal, recorded, crashed)
    print(f"{early:.0f} acks/s at the start, {late:.0f} at the end")
    assert late >= 0.7 * early
