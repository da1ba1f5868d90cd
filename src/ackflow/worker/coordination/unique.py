"""Unique messages: while one with a key waits or runs, another is not pushed.

    unique/KEY     the message that has the key: until a time while it waits, bound to its lease while
                   it runs

                push ──► waiting ──► running ──► settled: the key is free
                            ▲           │
                            └── retried ┘ the lease is over: the key is free

The key of a worker that was killed is free when its lease is over, so no key is ever lost. Its message
is delivered again; if another one has the key by then, it waits until that one is settled.
"""

import secrets
from typing import Any
from urllib.parse import quote

from ... import validate
from ...errors import InvalidArgument, TransactionFailed
from ...session.messages import Delivery, Receipt
from ...session.session import Session
from ...session.transaction import Operations
from ...validate import Duration

PREFIX = "unique/"
HEADER = "ackflow-unique"
MOST_KEY = 200
DAY = 86_400.0
TAKEN_SECONDS = 1.0  # after which a message asks again whose key another one has
TRIES = 5


class Unique:
    """Pushes messages that are unique by a key."""

    def __init__(self, session: Session, ttl: Duration = DAY) -> None:
        """`ttl`: how long a message may wait for its delivery, or its retry, and keep its key."""
        self._session = session
        self._ttl = validate.positive(ttl, "ttl")

    def push(self, queue: str, data: Any, key: str, **options: Any) -> Receipt | None:
        """Push one message, unless another one with the key waits or runs: then return None.

        `options` are those of `t.push`.
        """
        t = self._session.transaction()
        header = self.claim(t, key)
        if header is None:
            return None
        t.push(queue, data, headers={**(options.pop("headers", None) or {}), **header}, **options)
        try:
            return t.commit().receipts[0]
        except TransactionFailed as error:
            if error.details.get("code") != "version_conflict":
                raise
            return None

    def claim(self, t: Operations, key: str) -> dict[str, str] | None:
        """Add the key to a transaction; returns the header of its message, None if it is taken.

        If another transaction takes the key first, this one fails with a version conflict.
        """
        name, id = _name(key), secrets.token_hex(8)
        if t.puts(name) or self._session.value(name) is not None:
            return None
        t.put(name, id, expect=0, ttl=self._ttl)
        return {HEADER: f"{id} {key}"}

    def start(self, message: Delivery) -> bool:
        """Bind the key of a message to its lease, before it is processed.

        False: another message has the key, because this one lost it; release it for a while.
        """
        found = _key_of(message)
        if found is None:
            return True
        id, name = found
        for _ in range(TRIES):
            value = self._session.value(name)
            if value is not None and value.data != id:
                return False
            t = self._session.transaction()
            t.put(name, id, expect=value.version if value else 0, lease=message)
            try:
                t.commit()
                return True
            except TransactionFailed as error:
                if error.details.get("code") != "version_conflict":
                    raise
        return False

    def end(self, t: Operations, message: Delivery, *, again: bool = False) -> None:
        """Free the key in the transaction that settles the message; `again`: it is retried, and
        keeps it."""
        found = _key_of(message)
        if found is None:
            return
        id, name = found
        if again:
            t.put(name, id, ttl=self._ttl)
        else:
            t.delete(name)


def _name(key: str) -> str:
    name = PREFIX + quote(validate.name(key, "key"), safe=" /:@+=,;~!$&'()*")
    if len(name) > MOST_KEY:
        raise InvalidArgument(f"a unique key must have at most {MOST_KEY - len(PREFIX)} bytes")
    return name


def _key_of(message: Delivery) -> tuple[str, str] | None:
    """The id and the name of the key of a message, from its header."""
    id, _, key = message.headers.get(HEADER, "").partition(" ")
    try:
        return (id, _name(key)) if id and key else None
    except InvalidArgument:
        return None
