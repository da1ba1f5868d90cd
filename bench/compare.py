"""Embedded peers, which process one message at a time. All of them are optional."""

import importlib.util
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .engine import OURS, UNITS, Cycle, Rates
from .measure import Json, Noise, Open, Plan, alternate
from .ours import Ackflow
from .report import Table, rows_of


class Peer:
    """A queue of single messages; each peer implements put, take and acknowledge."""

    def __init__(
        self,
        put: Callable[[Json], object],
        get: Callable[[], Any],
        done: Callable[[Any], object],
        close: Callable[[], object],
    ) -> None:
        self._put, self._get, self._done, self._close = put, get, done, close

    def push(self, messages: Sequence[Json]) -> None:
        for message in messages:
            self._put(message)

    def take(self, batch: int) -> list[Any]:
        return [self._get() for _ in range(batch)]

    def ack(self, taken: list[Any]) -> None:
        for one in taken:
            self._done(one)

    def ack_each(self, taken: list[Any], order: Sequence[int]) -> None:
        for index in order:
            self._done(taken[index])

    def catch_up(self) -> None:
        """Does nothing: peers have no upkeep."""

    def close(self) -> None:
        self._close()


def litequeue(path: Path) -> Peer:
    import json

    queue = import_module("litequeue").LiteQueue(str(path / "lite.db"))

    def get() -> Any:
        message = queue.pop()
        json.loads(message.data)
        return message.message_id

    return Peer(lambda m: queue.put(json.dumps(m)), get, queue.done, queue.close)


def persistqueue(path: Path) -> Peer:
    queue = import_module("persistqueue").SQLiteAckQueue(
        str(path), auto_commit=True, multithreading=True
    )
    return Peer(queue.put, lambda: queue.get(block=False), queue.ack, queue.close)


def huey(path: Path) -> Peer:
    import json

    store = import_module("huey").SqliteHuey(filename=str(path / "huey.db")).storage
    return Peer(
        lambda m: store.enqueue(json.dumps(m).encode()),
        lambda: json.loads(store.dequeue()),
        lambda _: None,
        store.close,
    )


PEERS: dict[str, tuple[str, Open, str]] = {
    "litequeue": ("litequeue", litequeue, "does not sync a push"),
    "persist-queue": ("persistqueue", persistqueue, "syncs a push"),
    "huey": ("huey", huey, "syncs a push; taking deletes, there is no ack"),
}


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    there = {name: p for name, p in PEERS.items() if importlib.util.find_spec(p[0])}
    for name in PEERS.keys() - there.keys():
        print(f"\n{name} is not installed and left out (pip install {name})")
    if not there:
        return []
    systems: dict[str, Open] = {OURS: Ackflow, **{name: peer[1] for name, peer in there.items()}}
    some = messages[: plan.singles]
    with Noise() as noise:
        results = alternate([Rates(some, 1), Cycle(some)], systems, min(plan.rounds, 5), noise)
    tables = []
    for name, (_, _, durability) in there.items():
        table = Table(f"Ackflow and {name}", (OURS, name))
        table.rows = rows_of(results, OURS, name, UNITS, {})
        table.quiet = noise.quiet
        table.notes = [f"{name} {durability}; Ackflow syncs a push", str(noise)]
        tables.append(table)
    return tables
