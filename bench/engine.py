"""Ackflow against the plain table: rates by batch size, the latency of a cycle, single acks."""

import random
import time
from collections.abc import Sequence

from .measure import Case, Json, Noise, Plan, Queue, alternate, batches, quantile, seconds
from .ours import Ackflow
from .plain import PlainTable
from .report import Table, Target, rows_of

OURS, PLAIN = "Ackflow", "plain table"
UNITS = {"cycle of one, p50": "µs", "cycle of one, p99": "µs"}
TARGETS = {
    "push, 1,000 at a time": Target(4),
    "pop and ack, 1,000 at a time": Target(4),
    "cycle of one, p50": Target(0.7, at_least=False),
    "ack one by one, in order": Target(2),
    "ack one by one, at random": Target(2),
}


class Rates:
    """Push all messages, then pop, decode, ack and trim them, in batches of one size."""

    def __init__(self, messages: Sequence[Json], batch: int) -> None:
        self._batches = batches(messages, batch)
        self._n = len(messages)
        self._batch = batch

    def __call__(self, queue: Queue) -> dict[str, float]:
        size = f"{self._batch:,} at a time"
        return {
            f"push, {size}": self._n / seconds(lambda: self._push(queue)),
            f"pop and ack, {size}": self._n / seconds(lambda: self._drain(queue)),
        }

    def _push(self, queue: Queue) -> None:
        for batch in self._batches:
            queue.push(batch)

    def _drain(self, queue: Queue) -> None:
        left = self._n
        while left:
            taken = queue.take(self._batch)
            assert len(taken) == min(self._batch, left), "a batch came short"
            queue.ack(taken)
            left -= len(taken)
        queue.catch_up()


class Cycle:
    """Push one message, pop it, ack it, then the next."""

    def __init__(self, messages: Sequence[Json]) -> None:
        self._messages = messages

    def __call__(self, queue: Queue) -> dict[str, float]:
        times = []
        for message in self._messages:
            start = time.perf_counter()
            queue.push([message])
            queue.ack(queue.take(1))
            times.append((time.perf_counter() - start) * 1e6)
        return {
            "cycle of one, p50": quantile(times, 0.5),
            "cycle of one, p99": quantile(times, 0.99),
        }


class AckEach:
    """Pop a batch of 1,000 and ack its messages one by one."""

    def __init__(self, messages: Sequence[Json]) -> None:
        self._messages = messages[:1000]

    def __call__(self, queue: Queue) -> dict[str, float]:
        order = list(range(len(self._messages)))
        in_order = self._rate(queue, order)
        random.Random(2).shuffle(order)
        return {
            "ack one by one, in order": in_order,
            "ack one by one, at random": self._rate(queue, order),
        }

    def _rate(self, queue: Queue, order: Sequence[int]) -> float:
        queue.push(self._messages)
        taken = queue.take(len(self._messages))

        def settle() -> None:
            queue.ack_each(taken, order)
            queue.catch_up()

        return len(order) / seconds(settle)


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    cases: list[Case] = [
        Rates(messages[: plan.singles], 1),
        Rates(messages[: plan.messages // 2], 100),
        Rates(messages[: plan.messages], 1000),
        Cycle(messages[: plan.singles]),
        AckEach(messages),
    ]
    with Noise() as noise:
        results = alternate(cases, {OURS: Ackflow, PLAIN: PlainTable}, plan.rounds, noise)
    table = Table("Engine: Ackflow and a plain table, both on SQLite", (OURS, PLAIN))
    table.rows = rows_of(results, OURS, PLAIN, UNITS, TARGETS)
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {plan.rounds} rounds; spread is the ratio of single rounds",
        str(noise),
        "both sync a push before it is confirmed; the table syncs leases and deletes too, Ackflow",
        "by default does not: a power cut may bring an acked message again; trimming is included",
    ]
    return [table]
