"""End-of-file messages in the router: held until every batch before them is forwarded.

The forwarded end of a table and the acks of the end-of-file messages behind it are one
transaction. Each upstream worker sends one end-of-file message per table and client:

    received ──► held ──► complete ──► forwarded and acked
                  ▲  │       │
                  │  │       └─ transaction refused: stays held, retried by `poll`
                  │  └─ client cancelled: acked, nothing forwarded
                  └─ lease lost or router killed: the message is redelivered

Workers are identified by number, so a duplicate end-of-file message counts once. A table is
complete when the end-of-file messages of all its workers are held and as many batches are
handled as these messages announce.
"""

import logging
import threading
from typing import NamedTuple

import msgspec

from .. import Session, ids
from ..broker.requests import Mark, SettleOperation, Verdict
from ..errors import TransactionFailed
from ..session.transaction import Transaction
from .cancel import cancelled_clients
from .declaration import Pipeline
from .messages import EndForwarded, EndOfTable, encode
from .state import HeldEnds, broker_time, held_ends

log = logging.getLogger("ackflow.pipeline")


class HeldEof(NamedTuple):
    """An end-of-file message that is not acknowledged yet, and the delivery it came with."""

    eof: EndOfTable
    id: str
    lease: str
    sequence: int


class TableKey(NamedTuple):
    """One table of one client."""

    table: str
    client: str

    def __str__(self) -> str:
        return f"(TableName.{self.table.upper()}, {self.client!r})"


class EofLedger:
    """The end-of-file messages that a router holds. It starts empty: held ones are redelivered."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._held: dict[TableKey, dict[int, HeldEof]] = {}

    def receive(self, held: HeldEof, redelivered: bool) -> HeldEof | None:
        """Record an end-of-file message; return a duplicate that must be acknowledged, if any.

        A second message of the same worker replaces the first. The first is returned if it was
        a different message, not another delivery of the same one.
        """
        key = TableKey(held.eof.table, held.eof.client)
        if redelivered:
            log.info("TABLE_EOF REDELIVERED (recovering state): key=%s", key)
        else:
            log.info("TABLE_EOF received: key=%s", key)
        before = self._held.setdefault(key, {}).get(held.eof.worker)
        self._held[key][held.eof.worker] = held
        return before if before is not None and before.id != held.id else None

    def tables(self) -> list[TableKey]:
        """Return the tables of which end-of-file messages are held."""
        return list(self._held)

    def pending(self, key: TableKey, handled: int) -> int | None:
        """Return how many batches are still to be handled; None while a worker's end is missing."""
        held = self._held.get(key, {})
        if not held or len(held) < max(one.eof.workers for one in held.values()):
            return None
        return sum(one.eof.batches for one in held.values()) - handled

    def complete(self, key: TableKey, handled: int) -> list[HeldEof]:
        """Return the end-of-file messages that may be forwarded now; empty when it is too early."""
        pending = self.pending(key, handled)
        if pending != 0:
            announced = sum(one.eof.batches for one in self._held.get(key, {}).values())
            log.info(
                "TABLE_EOF deferred: key=%s pending=%d",
                key,
                max(0, announced - handled) if pending is None else pending,
            )
            return []
        return list(self._held[key].values())

    def held(self, key: TableKey) -> list[HeldEof]:
        """Return the end-of-file messages held of a table, complete or not."""
        return list(self._held.get(key, {}).values())

    def drop_cancelled(self, key: TableKey) -> None:
        """Forget a table of a cancelled client after its messages were acknowledged."""
        for held in self._held.pop(key, {}).values():
            log.info(
                "ACKing TABLE_EOF of a cancelled client: key=%s delivery_tag=%d",
                key,
                held.sequence,
            )

    def forwarded(self, key: TableKey) -> None:
        """Forget a table after its end was forwarded and its messages were acknowledged."""
        log.info("TABLE_EOF -> aggregators: key=%s parts=%d", key, self._shards)
        for held in self._held.pop(key, {}).values():
            log.info("ACKing TABLE_EOF: key=%s delivery_tag=%d", key, held.sequence)

    def counts(self) -> dict[str, int]:
        """Return the number of held end-of-file messages by `client/table`."""
        return {f"{key.client}/{key.table}": len(held) for key, held in self._held.items()}


class EofForwarder:
    """Forwards the end of each table to every shard once all its batches are forwarded."""

    def __init__(self, q: Session, pipeline: Pipeline, shards: list[str]) -> None:
        self._q, self._pipeline, self._shards = q, pipeline, shards
        self._ledger = EofLedger(len(shards))
        self._lock = threading.Lock()
        self._refused = False

    def receive(self, ends: list[tuple[HeldEof, bool]]) -> None:
        """Record end-of-file messages, each with its redelivered flag; forward complete tables."""
        with self._lock:
            for held, redelivered in ends:
                duplicate = self._ledger.receive(held, redelivered)
                if duplicate is not None:
                    self._q.lease(duplicate.lease).ack(duplicate.id)
            self.forward_complete()
            self._report_held()

    def forward_complete(self) -> None:
        """Forward the end of every table whose batches are all forwarded."""
        self._refused = False
        for key in self._ledger.tables():
            held = self._ledger.complete(key, self.batches_handled(key))
            if not held:
                continue
            t = self._q.transaction()
            end = EndForwarded(key.client, key.table, sum(one.eof.batches for one in held))
            for shard in self._shards:
                t.push(self._pipeline.shards, encode(end), partition=shard)
            if self._commit_with_acks(t, key, held):
                self._ledger.forwarded(key)

    def poll(self) -> None:
        """Retry refused transactions, and acknowledge the messages of cancelled clients.

        The router calls this between batches.
        """
        cancelled = cancelled_clients(self._q, self._pipeline)
        with self._lock:
            if self._refused:
                self.forward_complete()
            for key in self._ledger.tables():
                if key.client not in cancelled:
                    continue
                if self._commit_with_acks(self._q.transaction(), key, self._ledger.held(key)):
                    self._ledger.drop_cancelled(key)
            self._report_held()

    def _commit_with_acks(self, t: Transaction, key: TableKey, held: list[HeldEof]) -> bool:
        """Add the acks of `held` to a transaction and commit it; return whether it committed."""
        for one in held:
            position = ids.parse_message_id(one.id)
            mark = Mark(Verdict("ack"), position.lane, [position.sequence, position.sequence + 1])
            t.add(SettleOperation(ids.parse_token(one.lease), [mark]))
        try:
            t.commit()
        except TransactionFailed as refused:
            # Nothing was forwarded. A message whose lease was lost is redelivered and replaces
            # the one in the ledger.
            log.warning("TABLE_EOF not forwarded: key=%s: %s", key, refused.message)
            self._refused = True
            return False
        return True

    def _report_held(self) -> None:
        """Store the held counts for `status`; the age survives the death of a router."""
        known = held_ends(self._q, self._pipeline)
        now = {key: HeldEnds(n, known[key].since if key in known else broker_time(self._q))
               for key, n in self._ledger.counts().items()}  # fmt: skip
        if now != known:
            t = self._q.transaction()
            t.put(self._pipeline.state_key("held"), msgspec.to_builtins(now))
            t.commit()

    def handled_key(self, key: TableKey) -> str:
        """Return the state key of the number of handled batches of a table."""
        return self._pipeline.state_key("handled", key.client, key.table)

    def batches_handled(self, key: TableKey) -> int:
        value = self._q.value(self.handled_key(key))
        return 0 if value is None else int(value.data)
