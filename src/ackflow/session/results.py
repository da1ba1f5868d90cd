"""Results and progress of messages: keyed values that end, for messages that ask for them.

    results/ID      what became of the message; written in the transaction that settles it
    progress/ID     how far it is; kept over attempts

The id is in a header of the message, which a requeued copy keeps. A message without the header costs
nothing.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .. import validate
from ..errors import InvalidArgument
from ..validate import Duration
from .messages import Delivery
from .transaction import Operations

HEADER = "ackflow-result"
RESULTS, PROGRESS = "results/", "progress/"
TTL_SECONDS = 3_600.0


class Asked(Struct, frozen=True):
    """The id under which the result of a message is kept, and for how long."""

    id: str
    ttl: float

    @property
    def header(self) -> dict[str, str]:
        """The header that requests the result."""
        return {HEADER: f"{self.id} {self.ttl:g}"}


def ask(ttl: Duration = TTL_SECONDS, key: str | None = None) -> Asked:
    """Request the result of a message: push it with `headers=asked.header`.

    A push with a key is repeated with the same `key` here, so that each repeat has the result.
    """
    id = secrets.token_hex(12)
    if key is not None:
        id = hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    return Asked(id, validate.positive(ttl, "ttl"))


def asked_by(message: Delivery) -> Asked | None:
    """The result that a message requests; None: no result is kept."""
    id, _, ttl = message.headers.get(HEADER, "").partition(" ")
    try:
        return Asked(validate.name(id, "id"), validate.positive(float(ttl), "ttl")) if id else None
    except (ValueError, InvalidArgument):
        return None


def put_progress(
    t: Operations, message: Delivery, part: float, data: Mapping[str, Any] | None
) -> None:
    """Add the progress of a message to a transaction."""
    asked = asked_by(message)
    if asked is None:
        raise InvalidArgument(
            "the message does not ask for results, so its progress is not kept; give its task "
            "`result=True`, or push it with `headers=ask().header`"
        )
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
        raise InvalidArgument(f"progress must be from 0 to 1, got {part!r}")
    found = {"progress": part, "data": dict(data or {}), "attempt": message.deliveries}
    t.put(PROGRESS + asked.id, found, ttl=asked.ttl)
