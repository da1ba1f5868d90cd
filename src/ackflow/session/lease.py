"""A lease known by its token, for code that did not pop it: another process or a command."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from .. import ids, validate
from ..broker.broker import Verbs
from ..broker.core import leases, settle
from ..broker.requests import Mark, Verdict
from ..errors import NotFound
from ..model import when
from ..validate import Duration, Reason
from .messages import Batch, Message, Refusal, Settled, to_verdict


class LeaseSession(Protocol):
    """The methods of a session that a lease uses."""

    @property
    def broker(self) -> Verbs: ...
    def read(self, token: str) -> Batch[Message]: ...
    def settle_marks(
        self, marks: dict[int, list[Mark]], messages: int, synced: bool
    ) -> Settled: ...


class Lease:
    """A lease known by its token alone.

    Called without message ids, a verb applies to every message that the lease still holds.
    """

    def __init__(self, session: LeaseSession, token: int) -> None:
        self._session = session
        self._token = token

    def __repr__(self) -> str:
        return f"<Lease {self.token}>"

    @property
    def token(self) -> str:
        """The token of the lease."""
        return ids.token_text(self._token)

    def ack(self, *message_ids: str, confirm: bool = False) -> Settled:
        """Acknowledge messages; without ids, all that the lease still holds."""
        return self._settle(message_ids, Verdict("ack", confirm=confirm))

    def nack(
        self, *message_ids: str, reason: Reason | None = None, delay: Duration | None = None
    ) -> Settled:
        """Report a failure: messages are delivered again after `delay`, or after the back-off."""
        return self._settle(message_ids, to_verdict("nack", reason, delay))

    def release(self, *message_ids: str) -> Settled:
        """Return messages to the queue immediately, without counting the delivery."""
        return self._settle(message_ids, Verdict("release"))

    def requeue(self, *message_ids: str, delay: Duration | None = None) -> Settled:
        """Append copies to the end of their lanes; the originals are done."""
        return self._settle(message_ids, to_verdict("requeue", delay=delay))

    def reject(self, *message_ids: str, reason: Reason | None = None) -> Settled:
        """Never deliver messages again; keep them as dead letters with the reason."""
        return self._settle(message_ids, to_verdict("reject", reason))

    def dead_letter(self, *message_ids: str, reason: Reason | None = None) -> Settled:
        """Move messages to the dead letters now, as failures."""
        return self._settle(message_ids, to_verdict("dead_letter", reason))

    def extend(self, seconds: Duration | None = None) -> datetime:
        """Extend the lease to end no earlier than `seconds` from now; return its new end."""
        given = validate.positive_or_none(seconds, "seconds")
        return when(self._session.broker.do(settle.extend, False, self._token, given))

    def read(self) -> Batch[Message]:
        """Return the messages of the lease again, settled or not."""
        return self._session.read(self.token)

    def _store(self) -> int:
        """The id of the database of the lease."""
        broker = self._session.broker
        return broker.store.id or broker.look(leases.store_of_lease, self._token)

    def _settle(self, message_ids: Sequence[str], verdict: Verdict) -> Settled:
        verdict.check()
        marks = [Mark(verdict)] if not message_ids else []
        store, foreign = self._store(), []
        for id in message_ids:
            place = ids.parse_message_id(id)
            if place.store == store:
                marks.append(Mark(verdict, place.lane, [place.sequence, place.sequence + 1]))
            else:
                foreign.append(
                    Refusal(id, NotFound.code, "the message belongs to another database")
                )
        result = Settled()
        if marks:
            settled = {self._token: marks}
            result = self._session.settle_marks(settled, len(marks), verdict.synced)
        result.refused = result.refused + foreign
        return result
