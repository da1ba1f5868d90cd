"""Two databases against one, where brokers wait for the disk: every sync takes 20 ms.

Each database has a broker with a queue. Two brokers on one database share its flushes, so they are
compared as well, without a target.

The servers are separate clusters with a log of their own, so that the figure is about waiting, not
about the cores that both sides share.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from unittest import mock

import ackflow
from ackflow.broker.sharded.broker import ShardedBroker

from . import slow_sync
from .measure import Json, Noise, Plan
from .report import Row, Table, Target

SYNC_MS = 20.0
SECONDS = 5.0
TWICE = Target(1.6)
BATCHES = (1, 100)


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    try:
        from tests.postgres import server
    except ImportError as missing:
        print(f"databases are left out: {missing}")
        return []
    slow = slow_sync.environment(SYNC_MS)
    if slow is None:
        print("databases are left out: a slow disk needs a C compiler (apt-get install gcc)")
        return []
    rounds = min(plan.rounds, 3)
    table = Table("Databases: two with a broker each", ("two databases", "one database"))
    with ExitStack() as stack:
        noise = stack.enter_context(Noise())
        with mock.patch.dict(os.environ, slow):
            one, other = (stack.enter_context(server.running()) for _ in range(2))
        both, alone = f"{one.url},{other.url}", one.url
        sides = {"two": (both, _apart(both)), "one": (alone, ["a"]), "shared": (alone, ["a", "b"])}
        for batch in BATCHES:
            values: dict[str, list[float]] = {side: [] for side in sides}
            for number in range(rounds):
                noise.probe()
                for side in sides if number % 2 else reversed(sides):
                    values[side].append(_measure(*sides[side], batch))
            two, cycle = values["two"], f"cycle of {batch}"
            table.rows += [
                Row(f"{cycle}, one broker on one", "cycles/s", two, values["one"], TWICE),
                Row(f"{cycle}, two brokers on one", "cycles/s", two, values["shared"]),
            ]
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {rounds} rounds of {SECONDS:g} s; each broker is a process with one thread: push, pop, ack",
        f"PostgreSQL on a disk that needs {SYNC_MS:g} ms for a sync",
        str(noise),
    ]
    return [table]


def _apart(url: str) -> list[str]:
    """Two queues that are created in different databases."""
    with ackflow.connect(url, upkeep=False) as q:
        broker = q.broker
        assert isinstance(broker, ShardedBroker)
        homes = {broker.directory.for_new(name): name for name in "abcdefghijklmnop"}
    assert len(homes) == 2
    return list(homes.values())


def _measure(url: str, queues: list[str], batch: int) -> float:
    """The cycles per second of one process for each queue, together."""
    command = [sys.executable, "-m", "bench.databases", url]
    children = [
        subprocess.Popen([*command, queue, str(batch)], stdin=subprocess.PIPE, text=True,
                         stdout=subprocess.PIPE)
        for queue in queues
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # it is connected and has run a cycle
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    total = sum(float(child.communicate()[0]) for child in children)
    return total / SECONDS


def _child(url: str, queue: str, batch: int) -> None:
    with ackflow.connect(url) as q:
        q.configure(queue, keep_seconds=0)

        def cycle() -> None:
            q.push(queue, ["x" * 200] * batch)
            q.ack(q.pop(queue, batch=batch))

        cycle()
        print("ready", flush=True)
        sys.stdin.readline()
        cycles, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until:
            cycle()
            cycles += 1
        print(cycles)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
