"""The finisher: when every shard has folded every table of a client, it answers the questions.

The ends of a client stay unacknowledged until its answers are on disk; they and the folded rows
are acknowledged together. Killed in between, it does the same again, byte for byte.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec

from .. import Message, Session
from ..errors import AckflowError, LeaseLost, TransactionFailed
from .aggregate import fold
from .cancelling import cancelled, forget
from .declare import Pipeline
from .exact import add, rounded, sortable, text
from .words import Folded, Rows

GROUP = "finisher"
LEASE = 10.0
PULL = 500

log = logging.getLogger("ackflow.pipeline")
_end = msgspec.json.Decoder(Folded).decode
_rows = msgspec.json.Decoder(Rows).decode


class Finisher:
    def __init__(self, q: Session, pipeline: Pipeline, out: Path, shards: int) -> None:
        self._q, self._pipeline, self._out, self._shards = q, pipeline, out, shards
        self._ends: dict[str, dict[tuple[str, str], tuple[Message, Folded]]] = {}
        for queue in (pipeline.ends, pipeline.folded):
            q.configure(queue, keep_seconds=0)
            q.group(queue, GROUP, ordering="shared", lease_seconds=LEASE, max_deliver=None)

    def run_once(self, wait: float = 1.0) -> list[str]:
        """Take in what shards have finished; answers with the clients that are done now."""
        self._renew()
        taken = self._q.pop(self._pipeline.ends, group=GROUP, batch=100, wait=wait)
        for message in taken:
            end = _end(message.raw)
            self._ends.setdefault(end.client, {})[end.table, end.shard] = message, end
        for client in cancelled(self._q, self._pipeline):
            self._let_go(client)
        wanted = len(self._pipeline.tables) * self._shards
        done = []
        for client in [c for c, ends in self._ends.items() if len(ends) == wanted]:
            if self._finish(client):
                done.append(client)
        return done

    def _renew(self) -> None:
        """Keep what is held; what was lost comes again."""
        for client, ends in list(self._ends.items()):
            try:
                _extend(self._q, [message for message, _ in ends.values()])
            except LeaseLost:
                log.warning("the ends of %s were lost and come again", client)
                del self._ends[client]

    def _finish(self, client: str) -> bool:
        ends = self._ends[client]
        expected = {shard: 0 for _, shard in ends}
        for (_, shard), (_, end) in ends.items():
            expected[shard] = max(expected[shard], end.pushed)
        held = self._pull(client)
        if len(held) != sum(expected.values()):
            # Some are leased by a finisher that died: they come when its lease is over.
            self._q.release(held)
            return False
        settled = [*held, *(message for message, _ in ends.values())]
        with _kept(self._q, settled):
            write(self._out / client, answers(self._pipeline, [_rows(m.raw) for m in held]))
        t = self._q.transaction()
        t.ack(settled)
        t.put(self._pipeline.value("done", client), True)
        del self._ends[client]
        try:
            t.commit()
        except TransactionFailed:
            log.warning("what %s was answered from was lost and comes again", client)
            return False
        return True

    def _let_go(self, client: str) -> None:
        """Drop what a cancelled client left."""
        for message, _ in self._ends.pop(client, {}).values():
            message.ack()
        self._q.ack(self._pull(client))
        forget(self._q, self._pipeline, client)

    def _pull(self, client: str) -> list[Message]:
        held: list[Message] = []
        while some := self._q.pop(
            self._pipeline.folded, group=GROUP, batch=PULL, partition=client, lease_seconds=LEASE
        ):
            held += some
        return held


def _extend(q: Session, messages: list[Message]) -> None:
    for token in {message.token for message in messages}:
        if token is not None:
            q.lease(token).extend(LEASE)


@contextlib.contextmanager
def _kept(q: Session, messages: list[Message]) -> Iterator[None]:
    """Keep leases alive during work of any length; what is lost all the same shows at the commit."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(LEASE / 4):
            with contextlib.suppress(AckflowError):
                _extend(q, messages)

    thread = threading.Thread(target=renew, name="ackflow-finisher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def answers(pipeline: Pipeline, parts: list[Rows]) -> dict[str, list[dict[str, Any]]]:
    """The answer of every query over the folded rows."""
    db = apsw.Connection(":memory:")
    for name, function in (("money", _money), ("whole", _whole), ("compare", _compare)):
        db.create_scalar_function(name, function, 1, deterministic=True)
    db.create_aggregate_function("dsum", _Sum, 1)
    for route in pipeline.routes:
        rows = fold(route, (row for part in parts if part.route == route.name for row in part.rows))
        names = [*route.select, *route.sums]
        # The order in which rows came must not show in an answer.
        rows.sort(key=lambda row: tuple(str(row.get(name)) for name in names))
        columns = ", ".join(f'"{name}"' for name in names)
        db.execute(f'create table "{route.name}" ({columns})')
        marks = ", ".join("?" * len(names))
        db.executemany(
            f'insert into "{route.name}" values ({marks})',
            [[row.get(name) for name in names] for row in rows],
        )
    found = {}
    for query in pipeline.queries:
        cursor = db.cursor()
        records = []
        for row in cursor.execute(query.sql):
            heads = [column[0] for column in cursor.get_description()]
            pairs = zip(heads, row, strict=True)
            records.append({name: value for name, value in pairs if value is not None})
        found[query.name] = records
    return found


class _Sum:
    """An exact sum of decimals."""

    def __init__(self) -> None:
        self.total = Decimal(0)

    def step(self, *values: Any) -> None:
        for value in values:
            self.total = add(self.total, Decimal(value or 0))

    def final(self) -> str:
        return text(self.total)


def _money(*values: Any) -> float:
    return float(rounded(Decimal(values[0] or 0), 2))


def _whole(*values: Any) -> int | str:
    found = int(Decimal(values[0] or 0))
    # SQLite has no larger whole numbers, and one client's must not stop the finisher.
    return found if -(2**63) <= found < 2**63 else str(found)


def _compare(*values: Any) -> str:
    """Decimals are kept as text, which does not sort by value as it is."""
    return sortable(Decimal(values[0] or 0))


def write(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Write every answer whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in found.items():
        path = folder / f"{name}_results.json"
        part = path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            json.dump(records, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
