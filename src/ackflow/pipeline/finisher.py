"""The finisher: answers the queries of a client once every shard has folded every table.

The folded rows and ends of a client stay unacknowledged until its answers are on disk, and are
then acknowledged together. A finisher killed in between writes the same bytes again.
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
from .cancel import cancelled_clients, delete_counts
from .declaration import Pipeline
from .messages import Rows, ShardFolded

GROUP = "finisher"
LEASE = 10.0
POP_BATCH = 500

log = logging.getLogger("ackflow.pipeline")
_decode_end = msgspec.json.Decoder(ShardFolded).decode
_decode_rows = msgspec.json.Decoder(Rows).decode


class Finisher:
    """Consumes the folded rows and the ends of every shard."""

    def __init__(self, q: Session, pipeline: Pipeline, out: Path, shards: int) -> None:
        self._q, self._pipeline, self._out, self._shards = q, pipeline, out, shards
        self._ends: dict[str, dict[tuple[str, str], tuple[Message, ShardFolded]]] = {}
        for queue in (pipeline.ends, pipeline.folded):
            q.configure(queue, keep_seconds=0)
            q.group(queue, GROUP, ordering="shared", lease_seconds=LEASE, max_deliver=None)

    def run_once(self, wait: float = 1.0) -> list[str]:
        """Receive the ends of shards; return the clients whose answers are now written."""
        self._renew_leases()
        for message in self._q.pop(self._pipeline.ends, group=GROUP, batch=100, wait=wait):
            end = _decode_end(message.raw)
            self._ends.setdefault(end.client, {})[end.table, end.shard] = message, end
        for client in cancelled_clients(self._q, self._pipeline):
            self._drop(client)
        expected = len(self._pipeline.tables) * self._shards
        done = []
        for client in [c for c, ends in self._ends.items() if len(ends) == expected]:
            if self._finish(client):
                done.append(client)
        return done

    def _renew_leases(self) -> None:
        """Extend the leases of held ends; forget those that were lost, which are redelivered."""
        for client, ends in list(self._ends.items()):
            try:
                _extend(self._q, [message for message, _ in ends.values()])
            except LeaseLost:
                log.warning("lease lost: the ends of %s are redelivered", client)
                del self._ends[client]

    def _finish(self, client: str) -> bool:
        ends = self._ends[client]
        expected = {shard: 0 for _, shard in ends}
        for (_, shard), (_, end) in ends.items():
            expected[shard] = max(expected[shard], end.pushed)
        held = self._pop_folded(client)
        if len(held) != sum(expected.values()):
            # A dead finisher holds the rest until its lease expires.
            self._q.release(held)
            return False
        settled = [*held, *(message for message, _ in ends.values())]
        with _leases_renewed(self._q, settled):
            rows = [_decode_rows(message.raw) for message in held]
            write_answers(self._out / client, answers(self._pipeline, rows))
        t = self._q.transaction()
        t.ack(settled)
        t.put(self._pipeline.state_key("done", client), True)
        del self._ends[client]
        try:
            t.commit()
        except TransactionFailed:
            log.warning("lease lost: the folded rows of %s are redelivered", client)
            return False
        return True

    def _drop(self, client: str) -> None:
        """Acknowledge the messages and delete the counts of a cancelled client."""
        for message, _ in self._ends.pop(client, {}).values():
            message.ack()
        self._q.ack(self._pop_folded(client))
        delete_counts(self._q, self._pipeline, client)

    def _pop_folded(self, client: str) -> list[Message]:
        held: list[Message] = []
        while batch := self._q.pop(
            self._pipeline.folded,
            group=GROUP,
            batch=POP_BATCH,
            partition=client,
            lease_seconds=LEASE,
        ):
            held += batch
        return held


def _extend(q: Session, messages: list[Message]) -> None:
    for token in {message.token for message in messages}:
        if token is not None:
            q.lease(token).extend(LEASE)


@contextlib.contextmanager
def _leases_renewed(q: Session, messages: list[Message]) -> Iterator[None]:
    """Renew leases during work of any length; a lost lease makes the commit fail."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(LEASE / 4):
            with contextlib.suppress(AckflowError):
                _extend(q, messages)

    thread = threading.Thread(target=renew, name="ackflow-finisher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def write_answers(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Write each answer atomically: to a temporary file, fsync, rename."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in found.items():
        path = folder / f"{name}_results.json"
        temporary = path.with_suffix(".part")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(records, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
