"""The cost of one call in the presence of many due, delayed, deleted or leased messages.

It must not grow. Times are CPU times of this process, without the disk and other processes.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import ackflow
from ackflow.clock import VirtualClock

from .measure import Plan, folder
from .report import Row, Table, Target

NAME = "bench"
FLAT = Target(1.5, at_least=False)
ACKS = Target(3, at_least=False)
SLICE_MS = 20.0
POP_MS = 50.0
CALLS = 100

Fill = Callable[[ackflow.Session, VirtualClock], None]


def run(plan: Plan) -> list[Table]:
    size = 1 if plan.deep >= 1_000_000 else 10
    return [acks(size), pops(size), at_once(size)]


@contextmanager
def opened() -> Iterator[tuple[ackflow.Session, VirtualClock]]:
    """A queue without upkeep, so that the measured call does all pending work."""
    clock = VirtualClock()
    with (
        folder() as path,
        ackflow.connect(path / "a.db", clock=clock, upkeep=False, may_lose="everything") as q,
    ):
        q.configure(NAME, keep_seconds=None)
        q.push(NAME, "first")
        q.ack(q.pop(NAME))
        yield q, clock


def cpu_ms(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def acks(size: int) -> Table:
    """Acks one by one, at random, of a large lease and of a small one."""
    table = Table("Growth: CPU of an ack in a lease", ("10,000", "1,000"))
    found = [_acks(10_000), _acks(1_000)]
    table.rows = [
        Row(what, "ms", large, small, ACKS)
        for what, large, small in zip(
            ("at random, none acked", "at random, half acked"), *found, strict=True
        )
    ]
    return table


def _acks(n: int) -> list[list[float]]:
    rng = random.Random(1)
    with opened() as (q, _):
        q.push(NAME, list(range(n)))
        taken = list(q.pop(NAME, batch=n))
        rng.shuffle(taken)
        gc.collect()
        start = [cpu_ms(message.ack) for message in taken[:CALLS]]
        q.ack(taken[CALLS : n // 2])
        half = [cpu_ms(message.ack) for message in taken[n // 2 : n // 2 + CALLS]]
        return [start, half]


def pops(size: int) -> Table:
    """Push and pop one message in the presence of others; measures the pop."""
    table = Table("Growth: CPU of a pop of one", ("beside it", "beside 1,000 or none"))
    few, many = _delayed(1_000), _delayed(50_000 // size)
    kept_few, kept = _delayed(1_000, kept=True), _delayed(50_000 // size, kept=True)
    plain, requeued = _requeued(0), _requeued(10_000 // size)
    none, window = _leased(100), _leased(50_000 // size)
    table.rows = [
        Row(f"{50_000 // size:,} delayed in the lane", "ms", many, few, FLAT),
        Row(f"{50_000 // size:,} delayed, done and kept", "ms", kept, kept_few, FLAT),
        Row(f"{10_000 // size:,} requeued, of those", "ms", requeued, plain, FLAT),
        Row(f"{50_000 // size:,} leases out, max_ack_pending", "ms", window, none, FLAT),
    ]
    return table


def _pop_new(q: ackflow.Session) -> list[float]:
    gc.collect()
    found = []
    for n in range(CALLS):
        q.push(NAME, n)
        found.append(cpu_ms(lambda: q.ack(_one(q))))
    return found


def _one(q: ackflow.Session) -> ackflow.Batch[ackflow.Message]:
    taken = q.pop(NAME)
    assert len(taken) == 1, "a message is missing"
    return taken


def _delayed(n: int, kept: bool = False) -> list[float]:
    with opened() as (q, clock):
        for number in range(n):
            q.push(NAME, number, delay=3600 + number % 7)
        assert not q.pop(NAME)
        if kept:
            clock.advance(7200)
            while taken := q.pop(NAME, batch=1000):
                q.ack(taken)
        return _pop_new(q)


def _requeued(n: int) -> list[float]:
    """Measure pops of messages that have a segment each, either requeued or new."""
    with opened() as (q, _):
        if n:
            q.push(NAME, list(range(n)))
            for message in q.pop(NAME, batch=n):
                message.requeue()
        else:
            for number in range(CALLS + 10):
                q.push(NAME, number)
        gc.collect()
        return [cpu_ms(lambda: _one(q)) for _ in range(CALLS)]


def _leased(n: int) -> list[float]:
    with opened() as (q, _):
        q.group(NAME, "__QUEUE_MODE__", max_ack_pending=2 * n)
        q.push(NAME, list(range(n)))
        for _ in range(n):
            _one(q)
        return _pop_new(q)


def at_once(size: int) -> Table:
    """Measure the first pop after many messages became due at once, and the longest transaction."""
    table = Table(
        "Growth: much comes back at once", ("worst", "allowed"), notes=["until all of it is served"]
    )
    claims, leases, delayed = 100_000 // size, 20_000 // size, 50_000 // size
    cases: list[tuple[str, Fill]] = [
        (f"{claims:,} claims due", _claims(claims)),
        (f"{leases:,} leases over", _leases(leases)),
        (f"{delayed:,} delayed passed", _pass(delayed)),
        (f"{delayed:,} delayed due", _due(delayed)),
    ]
    once = Target(1, at_least=False)
    for what, fill in cases:
        pop, longest = _worst(fill)
        table.rows += [
            Row(f"{what}: pop", "ms", [pop], [POP_MS], once),
            Row(f"{what}: transaction", "ms", [longest], [SLICE_MS], once),
        ]
    return table


def _worst(fill: Fill) -> tuple[float, float]:
    """Return the slowest of the first pops, and the median of their slowest transactions."""
    with opened() as (q, clock):
        fill(q, clock)
        store = q._broker.store  # type: ignore[attr-defined]
        transact, longest = store.transact, []

        def measured(body: object, synced: bool) -> object:
            start = time.process_time()
            try:
                return transact(body, synced)
            finally:
                longest.append((time.process_time() - start) * 1e3)

        store.transact = measured
        gc.collect()
        worst, dearest = 0.0, []
        for _ in range(10):
            longest.clear()
            worst = max(worst, cpu_ms(lambda: _one(q)))
            dearest.append(max(longest))
        return worst, median(dearest)


def _claims(n: int) -> Fill:
    def fill(q: ackflow.Session, clock: VirtualClock) -> None:
        left = n
        while left:
            some = min(left, 1000)
            q.push(NAME, list(range(some)))
            for message in q.pop(NAME, batch=some):
                message.nack("no", delay=60)
            left -= some
        clock.advance(60)

    return fill


def _leases(n: int) -> Fill:
    def fill(q: ackflow.Session, clock: VirtualClock) -> None:
        q.push(NAME, list(range(n)))
        for _ in range(n):
            q.pop(NAME, lease_seconds=60)
        clock.advance(60)

    return fill


def _pass(n: int) -> Fill:
    def fill(q: ackflow.Session, clock: VirtualClock) -> None:
        for number in range(n):
            q.push(NAME, number, delay=60)
        q.push(NAME, list(range(10)))

    return fill


def _due(n: int) -> Fill:
    def fill(q: ackflow.Session, clock: VirtualClock) -> None:
        for number in range(n):
            q.push(NAME, number, delay=60)
        assert not q.pop(NAME)
        clock.advance(60)

    return fill
