"""End-of-file messages in the router: held until every block before them is folded.

The forwarded end of a table and the acks of the end-of-file messages behind it are one
transaction. Each upstream worker sends one end-of-file message per table and client:

    received ──► held ──► complete ──► forwarded and acked
                  ▲  │       │
                  │  │       └─ transaction refused: stays held, retried by `poll`
                  │  └─ client cancelled: acked, nothing forwarded
                  └─ lease lost or router killed: the message is redelivered

Workers are identified by number, so a duplicate end-of-file message counts once. A table is
complete when the end-of-file messages of all its workers are held and as many blocks are folded as
these messages announce. More than that is an alarm that names the files, until the client is
cancelled or accepted.
"""

import logging
import threading
from typing import NamedTuple

import msgspec

from .. import Session, ids
from ..broker.requests import Mark, SettleOperation, Verdict
from ..errors import TransactionFailed
from ..session.transaction import Transaction
from .declaration import Pipeline
from .state import (
    EndForwarded,
    EndOfTable,
    Handled,
    HeldEnds,
    TableKey,
    accepted_clients,
    broker_time,
    cancelled_clients,
    encode,
    held_ends,
)

log = logging.getLogger("ackflow.pipeline")


class HeldEof(NamedTuple):
    """An end-of-file message that is not acknowledged yet, and the delivery it came with."""

    eof: EndOfTable
    id: str
    lease: str
    sequence: int


class EofLedger:
    """The end-of-file messages that a router holds. It starts empty: held ones are redelivered."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
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
        """Return how many blocks are still to be folded; None while a worker's end is missing."""
        held = self._held.get(key, {})
        if not held or len(held) < max(one.eof.workers for one in held.values()):
            return None
        return sum(one.eof.blocks for one in held.values()) - handled

    def complete(self, key: TableKey, handled: int, accepted: bool = False) -> list[HeldEof]:
        """Return the end-of-file messages that may be forwarded now; empty when it is too early.

        With `accepted`, more blocks than announced are complete as well.
        """
        pending = self.pending(key, handled)
        if pending == 0 or (pending is not None and pending < 0 and accepted):
            return list(self._held[key].values())
        announced = sum(one.eof.blocks for one in self._held.get(key, {}).values())
        log.info(
            "TABLE_EOF deferred: key=%s pending=%d",
            key,
            max(0, announced - handled) if pending is None else pending,
        )
        return []

    def surplus(self, key: TableKey, handled: Handled) -> str | None:
        """Return which blocks arrived that the end-of-file messages of all workers do not name."""
        if (self.pending(key, handled.blocks) or 0) >= 0:
            return None
        found = []
        for worker, files in handled.workers.items():
            held = self._held[key].get(int(worker))
            for file, n in files.items():
                announced = 0 if held is None else held.eof.announced(file)
                if n > announced:
                    found.append(f"{file} from worker {worker}: {n} arrived, {announced} announced")
        return "; ".join(found) or f"{handled.blocks} blocks arrived"

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
        log.info("TABLE_EOF -> aggregators: key=%s parts=%d", key, self._parts)
        for held in self._held.pop(key, {}).values():
            log.info("ACKing TABLE_EOF: key=%s delivery_tag=%d", key, held.sequence)


class EofForwarder:
    """Forwards the end of each table to every partition once all its blocks are folded."""

    def __init__(self, q: Session, pipeline: Pipeline, parts: int) -> None:
        self._q, self._pipeline = q, pipeline
        self._parts = [f"{number:02d}" for number in range(parts)]
        self._ledger = EofLedger(parts)
        # Held during a batch as well; `poll` then comes again later.
        self.lock = threading.RLock()
        self._refused = False

    def receive(self, ends: list[tuple[HeldEof, bool]]) -> None:
        """Record end-of-file messages, each with its redelivered flag; forward complete tables."""
        with self.lock:
            for held, redelivered in ends:
                duplicate = self._ledger.receive(held, redelivered)
                if duplicate is not None:
                    self._q.lease(duplicate.lease).ack(duplicate.id)
            self.forward_complete()
            self._report_held()

    def forward_complete(self) -> None:
        """Forward the end of every table whose blocks are all folded."""
        self._refused = False
        accepted = accepted_clients(self._q, self._pipeline)
        for key in self._ledger.tables():
            handled = self.handled(key).blocks
            held = self._ledger.complete(key, handled, key.client in accepted)
            if not held:
                continue
            t = self._q.transaction()
            end = EndForwarded(key.client, key.table, handled)
            for part in self._parts:
                t.push(self._pipeline.ends, encode(end), partition=part)
            t.put(self._pipeline.state_key("ended", key.client, key.table), handled)
            if self._commit_with_acks(t, key, held):
                self._ledger.forwarded(key)

    def poll(self) -> None:
        """Retry refused transactions, and end what the user cancelled or accepted.

        The application calls this between batches.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            cancelled = cancelled_clients(self._q, self._pipeline)
            accepted = accepted_clients(self._q, self._pipeline)
            if self._refused or any(
                self._is_accepted(key, accepted) for key in self._ledger.tables()
            ):
                self.forward_complete()
            for key in self._ledger.tables():
                if key.client not in cancelled:
                    continue
                if self._commit_with_acks(self._q.transaction(), key, self._ledger.held(key)):
                    self._ledger.drop_cancelled(key)
            self._report_held()
        finally:
            self.lock.release()

    def _is_accepted(self, key: TableKey, accepted: set[str]) -> bool:
        """Return whether a table has more blocks than announced, and the user accepts that."""
        return key.client in accepted and bool(self._ledger.surplus(key, self.handled(key)))

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
        now = {}
        for key in self._ledger.tables():
            name = f"{key.client}/{key.table}"
            since = known[name].since if name in known else broker_time(self._q)
            surplus = self._ledger.surplus(key, self.handled(key))
            now[name] = HeldEnds(len(self._ledger.held(key)), since, surplus)
        if now != known:
            t = self._q.transaction()
            t.put(self._pipeline.state_key("held"), msgspec.to_builtins(now))
            t.commit()

    def handled_key(self, key: TableKey) -> str:
        """Return the state key of what is folded of a table."""
        return self._pipeline.state_key("handled", key.client, key.table)

    def handled(self, key: TableKey) -> Handled:
        """Return what is folded of a table."""
        value = self._q.value(self.handled_key(key))
        return Handled() if value is None else msgspec.convert(value.data, Handled)
