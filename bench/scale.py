"""The cost of a message in a deep queue and in a queue with many idle partitions."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import ackflow

from . import growth, lanes
from .measure import Json, Noise, Plan, batches, folder, seconds
from .ours import NAME, Ackflow
from .report import Row, Table, Target

SHALLOW = 10_000
PARTITIONS = 10_000
BUSY = "p0"
DEPTH = Target(1.2, at_least=False)
SPREAD = Target(1.5, at_least=False)
PREFILL = 1_000

Step = Callable[[], dict[str, float]]
Sides = tuple[list[float], list[float]]


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    tables = [depth(messages, plan), partitions(messages, plan)]
    return [*tables, *growth.run(plan), *lanes.run(messages, plan)]


def pairs(first: Step, second: Step, rounds: int, noise: Noise) -> dict[str, Sides]:
    """Measure two sides alternately; each is first every other time."""
    found: dict[str, Sides] = {}
    for number in range(rounds):
        if number % 10 == 0:
            noise.probe()
        values = [first(), second()] if number % 2 == 0 else [second(), first()][::-1]
        for side, measured in enumerate(values):
            for what, value in measured.items():
                found.setdefault(what, ([], []))[side].append(value)
    return found


def depth(messages: Sequence[Json], plan: Plan) -> Table:
    noise = Noise()
    with ExitStack() as stack:
        deep = _filled(stack.enter_context(folder()), messages, plan.deep)
        stack.callback(deep.close)
        shallow = _filled(stack.enter_context(folder()), messages, SHALLOW)
        stack.callback(shallow.close)
        steps = [_through(queue, messages) for queue in (deep, shallow)]
        for step in steps:
            step()
        gc.collect()
        with noise:
            found = pairs(steps[0], steps[1], plan.depth_rounds, noise)
    table = Table("Depth: cost of a message", (f"{plan.deep:,} deep", f"{SHALLOW:,} deep"))
    table.rows = [Row(what, "µs", *sides, DEPTH) for what, sides in found.items()]
    table.quiet = noise.quiet
    table.notes = [f"medians of {plan.depth_rounds} rounds in turns", str(noise)]
    return table


def _filled(path: Path, messages: Sequence[Json], count: int) -> Ackflow:
    """A queue with this number of messages that a group has started to read."""
    queue = Ackflow(path)
    queue.push(messages[:1])
    queue.ack(queue.take(1))
    some = batches(messages[:PREFILL], PREFILL)[0]
    for _ in range(count // len(some)):
        queue.push(some)
    _settle(queue)
    return queue


def _settle(queue: Ackflow) -> None:
    """Flush the set-up to disk before the measurement."""
    queue.catch_up()
    time.sleep(2)


def _through(queue: Ackflow, messages: Sequence[Json]) -> Step:
    """Push and take the same number of messages, at constant depth; costs in µs per message."""
    large, small = batches(messages[:5000], 1000), batches(messages[:40], 1)

    def costs(parts: Sequence[Sequence[Json]], size: int) -> tuple[float, float]:
        def push() -> None:
            for part in parts:
                queue.push(part)

        def drain() -> None:
            for _ in parts:
                taken = queue.take(size)
                assert len(taken) == size, "a batch came short"
                queue.ack(taken)
            queue.catch_up()

        n = len(parts) * size / 1e6
        return seconds(push) / n, seconds(drain) / n

    def step() -> dict[str, float]:
        many, one = costs(large, 1000), costs(small, 1)
        return {
            "push, 1,000 at a time": many[0],
            "pop and ack, 1,000 at a time": many[1],
            "push, 1 at a time": one[0],
            "pop and ack, 1 at a time": one[1],
        }

    return step


def partitions(messages: Sequence[Json], plan: Plan) -> Table:
    noise = Noise()
    with ExitStack() as stack:
        many = _parted(stack.enter_context(folder()), PARTITIONS)
        stack.callback(many.close)
        single = _parted(stack.enter_context(folder()), 1)
        stack.callback(single.close)
        steps = [_pops(queue, messages) for queue in (many, single)]
        for step in steps:
            step()
        gc.collect()
        with noise:
            found = pairs(steps[0], steps[1], plan.depth_rounds, noise)
    table = Table("Partitions: cost of a pop, one of them busy", (f"{PARTITIONS:,}", "1"))
    table.rows = [Row(what, "µs", *sides, SPREAD) for what, sides in found.items()]
    table.quiet = noise.quiet
    table.notes = [f"medians of {plan.depth_rounds} rounds in turns", str(noise)]
    return table


def _parted(path: Path, count: int) -> Ackflow:
    """A queue whose partitions all had a message before and are empty now."""
    queue = Ackflow(path)
    queue.push([ackflow.Item(data=0, partition=f"p{i}") for i in range(count)])  # type: ignore[misc]
    left = count
    while left:
        taken = queue.take(1000)
        assert len(taken), "a message is missing"
        queue.ack(taken)
        left -= len(taken)
    _settle(queue)
    return queue


def _pops(queue: Ackflow, messages: Sequence[Json]) -> Step:
    """Pop the messages of one partition; measures the pop in µs per call."""

    def cost(size: int, times: int) -> float:
        total = 0.0
        for _ in range(times):
            queue.session.push(NAME, messages[:size], partition=BUSY)
            start = time.perf_counter()
            taken = queue.session.pop(NAME, batch=size)
            total += time.perf_counter() - start
            assert len(taken) == size, "a batch came short"
            queue.ack(taken)
        return total / times * 1e6

    return lambda: {"pop of 1": cost(1, 20), "pop of 100": cost(100, 10)}
