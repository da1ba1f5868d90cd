"""Which ends of file are in, and whether everything before them is forwarded.

Nothing here is believed: workers are told apart by their number, never counted by messages; a
table is complete when as many of its batches are handled as its ends of file say there were.
"""

import logging
from typing import NamedTuple

from .messages import EndOfTable

log = logging.getLogger("ackflow.pipeline")


class Held(NamedTuple):
    """An end of file that is not acknowledged yet, and the delivery it came by."""

    eof: EndOfTable
    id: str
    lease: str
    number: int


class Key(NamedTuple):
    table: str
    client: str

    def __str__(self) -> str:
        return f"(TableName.{self.table.upper()}, {self.client!r})"


class Ledger:
    """The held ends of file of a router. It starts empty: what was held comes again."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._held: dict[Key, dict[int, Held]] = {}

    def receive(self, held: Held, redelivered: bool) -> Held | None:
        """Take note of an end of file. One of the same worker again takes the place of the first,
        which is answered if it was another message, to be acknowledged."""
        key = Key(held.eof.table, held.eof.client)
        if redelivered:
            log.info("TABLE_EOF REDELIVERED (recovering state): key=%s", key)
        else:
            log.info("TABLE_EOF received: key=%s", key)
        before = self._held.setdefault(key, {}).get(held.eof.worker)
        self._held[key][held.eof.worker] = held
        return before if before is not None and before.id != held.id else None

    def open(self) -> list[Key]:
        """The tables of which ends of file are held."""
        return list(self._held)

    def pending(self, key: Key, handled: int) -> int | None:
        """How many batches are still to be handled; None while ends of file are missing."""
        held = self._held.get(key, {})
        if not held or len(held) < max(one.eof.workers for one in held.values()):
            return None
        return sum(one.eof.batches for one in held.values()) - handled

    def complete(self, key: Key, handled: int) -> list[Held]:
        """The ends of file that may be forwarded now, none when it is too early."""
        pending = self.pending(key, handled)
        if pending != 0:
            known = sum(one.eof.batches for one in self._held.get(key, {}).values())
            log.info(
                "TABLE_EOF deferred: key=%s pending=%d",
                key,
                max(0, known - handled) if pending is None else pending,
            )
            return []
        return list(self._held[key].values())

    def held(self, key: Key) -> list[Held]:
        """The ends of file held of a table, complete or not."""
        return list(self._held.get(key, {}).values())

    def let_go(self, key: Key) -> None:
        """Forget a table whose client was cancelled; its ends of file are acknowledged."""
        for held in self._held.pop(key, {}).values():
            log.info(
                "ACKing TABLE_EOF of a cancelled client: key=%s delivery_tag=%d", key, held.number
            )

    def forwarded(self, key: Key) -> None:
        """Everything of a key was forwarded and acknowledged, in one transaction."""
        log.info("TABLE_EOF -> aggregators: key=%s parts=%d", key, self._parts)
        for held in self._held.pop(key, {}).values():
            log.info("ACKing TABLE_EOF: key=%s delivery_tag=%d", key, held.number)

    def unacknowledged(self) -> dict[str, int]:
        """How many ends of file are held, by table and client."""
        return {f"{key.client}/{key.table}": len(held) for key, held in self._held.items()}
