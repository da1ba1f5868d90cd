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
from pathlib import Path
from typing import Any

import msgspec

from .. import Message, Session
from ..errors import AckflowError, LeaseLost, TransactionFailed
from .answers import answers
from .cancel import cancelled, forget
from .declaration import Pipeline
from .messages import Folded, Rows

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
