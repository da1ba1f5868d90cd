"""Bounds that hold for any size of a lane and any number of lanes."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ackflow
from ackflow import Session, VirtualClock

from .measure import Json, Noise, Plan, folder
from .report import Row, Table, Target

MANY = 100_000
DELETED = 5_000
WAITING = 10_000
FLAT = Target(1.5, at_least=False)
ALLOWED = Target(1.0, at_least=False)
ROUNDS = 5


def run(_: Sequence[Json], plan: Plan) -> list[Table]:
    return [flat(), allowed()]


def flat() -> Table:
    """Measure the CPU time of a call with many deleted, trimmed or waiting messages."""
    table, noise = Table("Growth: CPU of a call", ("much", "none")), Noise()
    with noise, folder() as path:
        for what, case, n in (
            ("pop among deleted messages", _among_deleted, DELETED),
            ("delete beside deleted messages", _delete_one, DELETED),
            ("push refused at max_size, messages waiting", _refused, WAITING),
        ):
            much, none = case(path / f"{what}.db", n), case(path / f"{what}-none.db", 20)
            table.rows.append(Row(what, "µs", much, none, FLAT))
    table.quiet, table.notes = noise.quiet, [str(noise)]
    return table


def allowed() -> Table:
    """Times with 100,000 partitions, and the data that a stuck message retains, against limits."""
    table, noise = Table(f"{MANY:,} partitions", ("measured", "allowed")), Noise()
    with noise, folder() as path:
        with _parted(path / "many.db") as q:
            stats = [_cpu(lambda: q.queue_stats("q")) / 1e3 for _ in range(ROUNDS)]
            pops = [_cpu(lambda n=n: q.pop("q", group=f"new {n}")) / 1e3 for n in range(ROUNDS)]  # type: ignore[misc]
            rounds = _rounds(q)
        for what, values, most in (
            ("first pop of a new group", pops, 100.0),
            ("statistics of the queue", stats, 200.0),
            *((f"round of upkeep, {name}", values, 20.0) for name, values in rounds.items()),
        ):
            table.rows.append(Row(what, "ms", values, [most] * len(values), ALLOWED))
        kept = [float(_stuck(path / "stuck.db"))]
        table.rows.append(Row("messages kept by a stuck one", "", kept, [1.0], ALLOWED))
    table.quiet, table.notes = noise.quiet, ["CPU time", str(noise)]
    return table


def _cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e6


def _among_deleted(path: Path, n: int) -> list[float]:
    with ackflow.connect(path, upkeep=False) as q:
        _delete(q, n)
        q.ack(q.pop("q"))
        return [_cpu(lambda: q.pop("q")) for _ in range(10 * ROUNDS)]


def _delete_one(path: Path, n: int) -> list[float]:
    with ackflow.connect(path, upkeep=False) as q:
        ids = _delete(q, n)
        return [_cpu(lambda id=id: q.delete_message("q", id)) for id in ids[1 : 20 * ROUNDS : 2]]  # type: ignore[misc]


def _delete(q: Session, n: int) -> list[str]:
    """Delete every other message of a lane; return ids of messages after them."""
    ids = list(q.push("q", list(range(2 * n + 40 * ROUNDS))))
    q.group("q", "__QUEUE_MODE__")
    for id in ids[100 : 100 + 2 * n : 2]:
        q.delete_message("q", id)
    return ids[2 * n + 20 * ROUNDS :]


def _refused(path: Path, n: int) -> list[float]:
    with ackflow.connect(path, upkeep=False) as q:
        q.configure("q", max_size=n)
        q.push("q", list(range(n)))
        for message in q.pop("q", batch=n):
            message.nack(delay=3_600)

        def push() -> None:
            try:
                q.push("q", 0)
            except ackflow.errors.QueueFull:
                return
            raise AssertionError("a full queue took a message")

        push()
        return [_cpu(push) for _ in range(10 * ROUNDS)]


def _parted(path: Path) -> Session:
    q = ackflow.connect(path, upkeep=False, may_lose="everything")
    q.group("q", "g")
    for at in range(0, MANY, 10_000):
        q.push("q", [ackflow.Item(data=0, partition=f"p{n}") for n in range(at, at + 10_000)])
    return q


def _rounds(q: Session) -> dict[str, list[float]]:
    keeper, found = q.broker._keeper, {}  # type: ignore[attr-defined]
    keeper.run_once()
    for name in ("retention_seconds", "max_wait_seconds"):
        q.configure("q", **{name: 86_400})
        found[name] = [_cpu(keeper.run_once) / 1e3 for _ in range(ROUNDS)]
        q.configure("q", **{name: None})
    return found


def _stuck(path: Path) -> int:
    with ackflow.connect(path, clock=VirtualClock(), upkeep=False) as q:
        q.configure("q", keep_seconds=0)
        q.push("q", "stuck")
        q.pop("q", lease_seconds=86_400)
        for n in range(1_000):
            q.push("q", n)
            q.ack(q.pop("q"))
        q.upkeep()
        return q.queue_stats("q").messages
