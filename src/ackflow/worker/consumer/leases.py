"""The leases of popped batches: renewed while a message of the batch is not settled."""

import logging
import threading
from contextlib import AbstractContextManager

from ...broker.core.settle import extend
from ...session.lease_renewer import LeaseRenewer
from ...session.messages import Batch, Message
from ...session.session import Session
from ..processor import Binding
from .time_limits import Attempt

log = logging.getLogger("ackflow.worker")
RENEW_PARTS = 3  # a lease is renewed after a third of its time, so that two renewals may fail


class HeldLease:
    """One lease and how many of its messages are not settled yet."""

    __slots__ = ("attempts", "binding", "keeping", "left", "messages")

    def __init__(self, batch: Batch[Message], binding: Binding) -> None:
        self.messages = batch
        self.binding = binding
        self.left = len(batch)
        self.attempts: set[Attempt] = set()
        self.keeping: AbstractContextManager[None] | None = None


class Leases:
    """Renews leases on a thread of its own, which no handler can block."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._renewer = LeaseRenewer(
            lambda token: session.broker.do(extend, False, token, self._seconds[token]),
            session.broker.clock,
        )
        self._seconds: dict[int, float] = {}

    def hold(self, batch: Batch[Message], binding: Binding) -> HeldLease:
        """Renew the lease of a batch until all its messages are settled."""
        held = HeldLease(batch, binding)
        token = batch.origin.token
        if token is not None:
            self._seconds[token] = binding.lease_seconds
            held.keeping = self._renewer.keep(
                token, binding.lease_seconds / RENEW_PARTS, lambda: self._lost(held)
            )
            held.keeping.__enter__()
        return held

    def done(self, held: HeldLease, messages: int = 1) -> None:
        """Messages of a lease are settled; with the last one its renewal ends."""
        with self._lock:
            held.left -= messages
            if held.left > 0 or held.keeping is None:
                return
            keeping, held.keeping = held.keeping, None
        keeping.__exit__(None, None, None)
        token = held.messages.origin.token
        if token is not None:
            self._seconds.pop(token, None)

    def close(self) -> None:
        self._renewer.close()

    def _lost(self, held: HeldLease) -> None:
        held.messages.origin.lost = True
        log.warning("the lease of %d messages is lost; others may get them", held.left)
        for attempt in list(held.attempts):
            attempt.cancel()
