"""Unique messages: while one with a key waits or runs, another is not pushed.

    unique/KEY     the message that has the key: until a time while it waits, bound to its lease while
                   it runs

                push ──► waiting ──► running ──► settled: the key is free
                            ▲           │
                            └── retried ┘ the lease is over: the key is free

The key of a worker that was killed is free when its lease is over, so no key is ever lost. Its message
is delivered again; if another one has the key by then, it waits until that one is settled.
"""

import logging
import secrets
from typing import Any
from urllib.parse import quote

from .. import validate
from ..errors import AckflowError, InvalidArgument, TransactionFailed
from ..session.messages import Delivery, Receipt
from ..session.session import Session
from ..session.transaction import Operations
from ..validate import Duration

log = logging.getLogger("ackflow.worker")
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
        name, id = _name(key), secrets.token_hex(8)
        headers = {**(options.pop("headers", None) or {}), HEADER: f"{id} {key}"}
        t = self._session.transaction()
        t.put(name, id, expect=0, ttl=self._ttl)
        t.push(queue, data, headers=headers, **options)
        try:
            return t.commit().receipts[0]
        except TransactionFailed as error:
            if error.details.get("code") != "version_conflict":
                raise
            return None

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


class UniqueHooks:
    """Unique keys as a part of a worker."""

    def __init__(self, ttl: Duration = DAY) -> None:
        self._ttl = ttl
        self._unique: Unique | None = None

    def pre_received(self, context: Any) -> None:
        """Bind the key to the lease; put the message off while another one has the key."""
        if HEADER not in context.message.headers:
            return
        if self._unique is None:
            self._unique = Unique(context.session.outside, self._ttl)
        try:
            started = self._unique.start(context.message)
        except AckflowError as error:  # without its key the message must not run
            log.error("the key of %s could not be taken: %s", context.message, error)
            started = False
        if started:
            context.notes[self] = True
        else:
            context.release(TAKEN_SECONDS)

    def before_settle(self, context: Any) -> None:
        """Free the key, unless the message is tried again."""
        if self._unique is None or not context.notes.get(self):
            return
        status = getattr(context.status, "name", None)
        failed = context.exception is not None and status not in ("ACK", "REJECT")
        again = status == "REQUEUE" or (failed and not context.last_attempt)
        self._unique.end(context.session.operations, context.message, again=again)


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
