"""The ends of file of a router: held until everything before them is forwarded, then forwarded.

What is forwarded and the acks of what caused it are one transaction.
"""

import logging
import threading

import msgspec

from .. import Session, ids
from ..broker.core.settle import Mark, Verdict
from ..broker.core.transactions import Settles
from ..errors import TransactionFailed
from ..session.transaction import Transaction
from .cancel import cancelled
from .declaration import Pipeline
from .held import Waiting, waiting
from .keeping import broker_time
from .ledger import Held, Key, Ledger
from .messages import Forwarded, raw

log = logging.getLogger("ackflow.pipeline")


class Ends:
    """The ends of file that are held, and what was handled before them, which the queue keeps."""

    def __init__(self, q: Session, pipeline: Pipeline, shards: list[str]) -> None:
        self._q, self._pipeline, self._shards = q, pipeline, shards
        self._ledger = Ledger(len(shards))
        self._lock = threading.Lock()
        self._refused = False

    def handle(self, ends: list[tuple[Held, bool]]) -> None:
        """Take note of ends of file, each redelivered or not, and forward what is due."""
        with self._lock:
            for held, redelivered in ends:
                again = self._ledger.receive(held, redelivered)
                if again is not None:
                    self._q.lease(again.lease).ack(again.id)
            self.flush()
            self._tell()

    def flush(self) -> None:
        """Forward the end of every table whose batches are all forwarded."""
        self._refused = False
        for key in self._ledger.open():
            held = self._ledger.complete(key, self.count(key))
            if not held:
                continue
            t = self._q.transaction()
            end = Forwarded(key.client, key.table, sum(one.eof.batches for one in held))
            for shard in self._shards:
                t.push(self._pipeline.shards, raw(end), partition=shard)
            if self._acked(t, key, held):
                self._ledger.forwarded(key)

    def tend(self) -> None:
        """Between batches: try again what was refused, and acknowledge the ends of file of clients
        that were cancelled, as nobody waits for them."""
        gone = cancelled(self._q, self._pipeline)
        with self._lock:
            if self._refused:
                self.flush()
            for key in self._ledger.open():
                held = self._ledger.held(key)
                if key.client in gone and self._acked(self._q.transaction(), key, held):
                    self._ledger.let_go(key)
            self._tell()

    def _acked(self, t: Transaction, key: Key, held: list[Held]) -> bool:
        """Commit a transaction that acknowledges ends of file, too."""
        for one in held:
            place = ids.parse_message_id(one.id)
            mark = Mark(Verdict("ack"), place.lane, [place.sequence, place.sequence + 1])
            t.add(Settles(ids.parse_token(one.lease), [mark]))
        try:
            t.commit()
        except TransactionFailed as refused:
            # Nothing was forwarded. An end of file that was lost comes again, to its old place.
            log.warning("TABLE_EOF not forwarded: key=%s: %s", key, refused.message)
            self._refused = True
            return False
        return True

    def _tell(self) -> None:
        """Let a status know what is held and since when; what a dead router held is still right."""
        held = self._ledger.unacknowledged()
        known = waiting(self._q, self._pipeline)
        now = {key: Waiting(n, known[key].since if key in known else broker_time(self._q))
               for key, n in held.items()}  # fmt: skip
        if now != known:
            t = self._q.transaction()
            t.put(self._pipeline.value("held"), msgspec.to_builtins(now))
            t.commit()

    def handled(self, key: Key) -> str:
        """Where the number of handled batches of a table is kept."""
        return self._pipeline.value("handled", key.client, key.table)

    def count(self, key: Key) -> int:
        found = self._q.value(self.handled(key))
        return 0 if found is None else int(found.data)
