"""Single messages for fifteen minutes: the cost of a cycle and the file size must stay constant.

The quick form uses a virtual clock; the full form runs in real time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import ackflow
from ackflow import Session, VirtualClock

from .measure import FULL, Json, Noise, Plan, folder
from .ours import NAME
from .report import Row, Table, Target

MINUTES = 15
PER_SECOND = 100
ROUND_SECONDS = 0.05  # between two rounds of upkeep that have work
WINDOWS = 6  # of ten seconds, in each minute
FLAT = Target(1.2, at_least=False)
BEFORE, EARLY, LATE = 4, 12, 15  # the history of leases is full after ten minutes
MIB = 1 << 20


@dataclass
class Minute:
    """Return one value for each ten seconds."""

    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    file: list[float] = field(default_factory=list)
    log: list[float] = field(default_factory=list)


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    noise = Noise()
    with folder() as path, noise:
        run_minutes = _real if plan == FULL else _virtual
        minutes = run_minutes(path / "ackflow.db", messages)
    before, early, late = (minutes[at - 1] for at in (BEFORE, EARLY, LATE))
    table = Table(f"{MINUTES} minutes of single messages, {PER_SECOND} a second", ("late", "early"))
    at = f"minute {LATE} against minute"
    table.rows = [
        Row(f"CPU of a cycle, {at} {BEFORE}", "µs", late.cpu, before.cpu, FLAT),
        Row(f"CPU of a cycle, {at} {EARLY}", "µs", late.cpu, early.cpu, FLAT),
        Row(f"memory, {at} {BEFORE}", "MiB", late.memory, before.memory, FLAT),
        Row(f"file, {at} {EARLY}", "MiB", late.file, early.file, FLAT),
        Row(f"log, {at} {BEFORE}", "MiB", late.log, before.log, FLAT),
    ]
    table.quiet = noise.quiet
    table.notes = ["a cycle: push, pop and ack of one message, upkeep included", str(noise)]
    return [table]


def _virtual(path: Path, messages: Sequence[Json]) -> list[Minute]:
    clock = VirtualClock()
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        keeper = q.broker._keeper  # type: ignore[attr-defined]

        def second(number: int) -> None:
            for cycle in range(PER_SECOND):
                _cycle(q, messages[(number * PER_SECOND + cycle) % len(messages)])
                clock.advance(1 / PER_SECOND)
                if cycle % round(ROUND_SECONDS * PER_SECOND) == 0:
                    keeper.run_once()

        return _minutes(q, path, second)


def _real(path: Path, messages: Sequence[Json]) -> list[Minute]:
    start = time.monotonic()
    with ackflow.connect(path) as q:

        def second(number: int) -> None:
            for cycle in range(number * PER_SECOND, (number + 1) * PER_SECOND):
                _cycle(q, messages[cycle % len(messages)])
                time.sleep(max(0.0, start + (cycle + 1) / PER_SECOND - time.monotonic()))

        return _minutes(q, path, second)


def _cycle(q: Session, message: Json) -> None:
    q.push(NAME, message)
    q.ack(q.pop(NAME))


def _minutes(q: Session, path: Path, second: Callable[[int], None]) -> list[Minute]:
    q.configure(NAME, keep_seconds=0)
    process, log = psutil.Process(), Path(f"{path}-wal")
    found = []
    for number in range(MINUTES):
        minute = Minute()
        for window in range(WINDOWS):
            width = 60 // WINDOWS
            before = time.process_time()
            for at in range(width):
                second(number * 60 + window * width + at)
            minute.cpu.append((time.process_time() - before) / (width * PER_SECOND) * 1e6)
            minute.memory.append(process.memory_info().rss / MIB)
            minute.file.append(path.stat().st_size / MIB)
            minute.log.append(log.stat().st_size / MIB)
        found.append(minute)
    return found
