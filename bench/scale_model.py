"""How far one PostgreSQL carries, and how many are needed: a model, calibrated by a measurement.

    python -m bench.scale_model measure      measure PostgreSQL on this machine, then simulate
    python -m bench.scale_model              simulate with the figures of docs/scale.md

Each database has one writer: it takes all requests that wait and commits them together, which costs a
flush of the log, a fixed time, a time for each request and a time for each message. Clients send the
next request when the last one was answered. A cycle of messages is three requests: push, pop, ack;
only the push waits for the flush. What the model leaves out is listed in docs/scale.md.
"""

import contextlib
import heapq
import os
import sys
import tempfile
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import psutil  # type: ignore[import-untyped]

import ackflow
from ackflow.broker.broker import Broker

if TYPE_CHECKING:
    from tests.postgres.server import Server

SECONDS = 5.0
ROUNDS = 50  # cycles of each client
TARGET = 1_000_000
BATCHES = (1, 10, 100, 1000)
CLIENTS = (1, 8, 64, 512)
REQUESTS = ("push", "pop", "ack")


class Costs(NamedTuple):
    """Milliseconds: a flush of the log, a transaction, a request in it, a message in that."""

    flush: float
    commit: float
    request: float
    message: float


# Measured with `python -m bench.scale_model measure`; see docs/scale.md for the machine.
MEASURED = Costs(flush=0.1133, commit=0.1141, request=0.1155, message=0.0017)


def simulate(costs: Costs, clients: int, batch: int, databases: int = 1) -> float:
    """Return the messages per second that go through push, pop and ack."""
    return sum(
        _one_database(costs, len(range(number, clients, databases)), batch)
        for number in range(databases)
    )


def _one_database(costs: Costs, clients: int, batch: int) -> float:
    now, cycles = 0.0, 0
    waiting = deque((client, 0) for client in range(clients))
    arriving: list[tuple[float, int, int]] = []
    while cycles < ROUNDS * clients:
        while arriving and arriving[0][0] <= now:
            _, client, step = heapq.heappop(arriving)
            waiting.append((client, step))
        if not waiting:
            now = arriving[0][0]
            continue
        taken, waiting = waiting, deque()
        now += costs.commit + len(taken) * (costs.request + batch * costs.message / len(REQUESTS))
        if any(REQUESTS[step] == "push" for _, step in taken):
            now += costs.flush
        for client, step in taken:
            done = step == len(REQUESTS) - 1
            cycles += done
            heapq.heappush(arriving, (now, client, 0 if done else step + 1))
    return cycles * batch / now * 1000 if now else 0.0


def databases_for(target: float, costs: Costs, clients: int, batch: int) -> int:
    """Return how many databases carry a load, each with this many clients."""
    return -int(-target // simulate(costs, clients, batch))


def measure() -> Costs:
    """Measure the costs on a server of its own, as time of the processors.

    The times of broker and server add up, because they work in turn. Other work on the machine
    changes them little, unlike times by the clock.
    """
    from tests.postgres.server import running

    with running() as server:
        alone, transactions = _processor_ms(server, 1, 1)
        shared, fewer = _processor_ms(server, 32, 1)
        many, _ = _processor_ms(server, 1, 1000)
    commit = (alone - shared) / (transactions - fewer)
    request = (alone - transactions * commit) / len(REQUESTS)
    return Costs(_flush(), commit, request, (many - alone) / 999)


def _processor_ms(server: "Server", threads: int, batch: int) -> tuple[float, float]:
    """The milliseconds of a processor that a cycle takes, and its transactions."""
    counts = [0] * threads
    with ackflow.connect(server.url, upkeep=False) as q:
        broker = q.broker
        assert isinstance(broker, Broker)
        names = [f"m{index}" for index in range(threads)]
        for name in names:
            q.configure(name, keep_seconds=0)
            q.push(name, 1)
            q.ack(q.pop(name))
        until = time.monotonic() + SECONDS

        def run(index: int) -> None:
            while time.monotonic() < until:
                q.push(names[index], ["x" * 200] * batch)
                q.ack(q.pop(names[index], batch=batch))
                counts[index] += 1

        began, commits = _processor_seconds(server), broker.commits
        running = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        took = _processor_seconds(server) - began
        return took * 1000 / sum(counts), (broker.commits - commits) / sum(counts)


def _processor_seconds(server: "Server") -> float:
    """What this process and the server have used."""
    postmaster = psutil.Process(server.pid)
    total = time.process_time()
    for process in [postmaster, *postmaster.children()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _flush() -> float:
    """The milliseconds of an fsync when the disk is not busy: the lowest tenth of many."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(300):
            file.write(bytes(8192))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[len(times) // 10]


def show(costs: Costs) -> str:
    lines = [
        "costs in ms: " + ", ".join(f"{name} {value:.4f}" for name, value in costs._asdict().items()),
        "",
        "messages/s through push, pop and ack in one database, by clients",
        f"{'batch':>8}" + "".join(f"{clients:>12,}" for clients in CLIENTS)
        + f"{'databases for ' + format(TARGET, ',') + '/s':>28}",
    ]  # fmt: skip
    for batch in BATCHES:
        row = "".join(f"{simulate(costs, clients, batch):>12,.0f}" for clients in CLIENTS)
        needed = databases_for(TARGET, costs, CLIENTS[-1], batch)
        lines.append(f"{batch:>8,}{row}{needed:>28,}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(show(measure() if sys.argv[1:] == ["measure"] else MEASURED))
