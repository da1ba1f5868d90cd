"""Shared tools: messages, temporary files, alternating rounds, and the noise of the machine."""

import gc
import json
import os
import random
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import psutil  # type: ignore[import-untyped]

Json = dict[str, Any]
SIZE = 200
MAX_CORES = 0.35  # of other processes, above which a run is noisy


class Queue(Protocol):
    """The queue interface of the cases. `take` decodes every payload; `catch_up` finishes upkeep."""

    def push(self, messages: Sequence[Json]) -> None: ...
    def take(self, batch: int) -> Any: ...
    def ack(self, taken: Any) -> None: ...
    def ack_each(self, taken: Any, order: Sequence[int]) -> None: ...
    def catch_up(self) -> None: ...
    def close(self) -> None: ...


Open = Callable[[Path], Queue]
Case = Callable[[Queue], dict[str, float]]


class Plan(NamedTuple):
    """The size of a run."""

    rounds: int
    messages: int
    singles: int
    deep: int
    depth_rounds: int


FULL = Plan(rounds=7, messages=200_000, singles=1_500, deep=5_000_000, depth_rounds=60)
QUICK = Plan(rounds=3, messages=50_000, singles=500, deep=500_000, depth_rounds=20)


def make_messages(n: int, seed: int = 1) -> list[Json]:
    """Return messages of about 200 bytes of JSON, each with a different random text."""
    rng = random.Random(seed)
    signs = string.ascii_letters + string.digits
    messages = []
    for number in range(n):
        message = {
            "id": number,
            "kind": "order.created",
            "at": 1_763_222_400 + rng.random(),
            "user": f"u-{rng.randrange(1_000_000)}",
            "note": "",
        }
        short = SIZE - len(json.dumps(message, separators=(",", ":")))
        message["note"] = "".join(rng.choices(signs, k=short))
        messages.append(message)
    return messages


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk of the working directory, removed afterwards."""
    here = os.getcwd()
    temporary = tempfile.gettempdir()
    same = os.stat(temporary).st_dev == os.stat(here).st_dev
    with tempfile.TemporaryDirectory(prefix="bench-", dir=temporary if same else here) as path:
        yield Path(path)


@contextmanager
def fresh(open_queue: Open) -> Iterator[Queue]:
    """A queue on a new file, used once so that measured times include no set-up."""
    with folder() as path:
        queue = open_queue(path)
        try:
            queue.push([{"first": True}])
            queue.ack(queue.take(1))
            queue.catch_up()
            gc.collect()
            yield queue
        finally:
            queue.close()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def batches(messages: Sequence[Json], size: int) -> list[Sequence[Json]]:
    return [messages[at : at + size] for at in range(0, len(messages), size)]


Results = dict[str, dict[str, list[float]]]


def alternate(
    cases: Sequence[Case],
    systems: dict[str, Open],
    rounds: int,
    noise: "Noise",
) -> Results:
    """Run every case on each system in turn, round by round, so that noise affects all equally.

    Returns the values of each system by the name of the measurement, one per round.
    """
    results: Results = {name: {} for name in systems}
    for number in range(rounds):
        names = list(systems) if number % 2 == 0 else list(reversed(systems))
        for case in cases:
            noise.probe()
            for name in names:
                with fresh(systems[name]) as queue:
                    for what, value in case(queue).items():
                        results[name].setdefault(what, []).append(value)
    return results


class Noise:
    """Noise during a measurement: CPU of other processes, and the cost of an fsync.

    The fsync matters as much as the CPU: the plain table syncs three times in a cycle and Ackflow
    once, so a disk that others slow down makes Ackflow look better than it is.
    """

    def __init__(self) -> None:
        self.syncs: list[float] = []

    def __enter__(self) -> "Noise":
        self._start = time.perf_counter(), _machine(), _own()
        self.cores = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        at, machine, own = self._start
        used = (_machine() - machine) - (_own() - own)
        self.cores = max(0.0, used / (time.perf_counter() - at))

    def probe(self) -> None:
        """Record the present cost of writing and syncing one page."""
        with folder() as path, open(path / "probe", "wb", buffering=0) as file:
            self.syncs.append(median(seconds(lambda: _sync(file)) for _ in range(50)) * 1e6)

    @property
    def quiet(self) -> bool:
        """Return whether the machine was otherwise idle."""
        steady = not self.syncs or max(self.syncs) < 2 * min(self.syncs)
        return self.cores < MAX_CORES and steady

    def __str__(self) -> str:
        text = f"other processes used {self.cores:.2f} of {os.cpu_count()} cores"
        if self.syncs:
            text += f", a sync took {min(self.syncs):.0f} to {max(self.syncs):.0f} µs"
        return text if self.quiet else f"NOISY: {text}; verdicts are not reliable"


def _sync(file: FileIO) -> None:
    file.write(bytes(4096))
    os.fdatasync(file.fileno())


def _own() -> float:
    """Return the CPU time of this process and of its ended children, such as servers."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def _machine() -> float:
    t = psutil.cpu_times()
    return float(t.user + t.nice + t.system + t.irq + t.softirq + t.steal)


def sync_time() -> str:
    """The median time of a write of one page and its sync, here and now."""
    with folder() as path, open(path / "page", "wb", buffering=0) as file:
        times = []
        for _ in range(100):
            file.write(bytes(4096))
            times.append(seconds(lambda: os.fdatasync(file.fileno())))
    return f"a sync takes {median(times) * 1e3:.2f} ms"
