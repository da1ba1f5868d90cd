"""What PushPop's HTTP interface and its actor share: texts, the lock time, items as JSON."""

import msgspec

from ... import ids
from ...broker.core.handout import Handout, is_binary, payload
from ...errors import InvalidArgument

MIN_LOCK_SECONDS, MAX_LOCK_SECONDS = 1, 300
MAX_COUNT = 100  # items in one pop

PUSHED = "Item pushed to queue {queue} at priority {priority}"
NEGATIVE_PRIORITY = "Priority must be non-negative"
ITEM_REQUIRED = "item is required and must not be null"


def clamp_lock_seconds(seconds: int) -> int:
    """Bring a requested lock time, however large, into the range of 1 to 300 seconds."""
    return max(MIN_LOCK_SECONDS, min(seconds, MAX_LOCK_SECONDS))


def parse_lock_id(lock_id: str) -> int | None:
    """The lease token that a lock id stands for; None for text that no token is written as."""
    try:
        return ids.parse_token(lock_id)
    except InvalidArgument:
        return None


def items_of(handout: Handout) -> list[bytes]:
    """The popped items, each as JSON."""
    found = []
    for run in handout.runs:
        for index in range(run.lo - run.first, run.hi - run.first):
            data = payload(run.body, index)
            # Bytes pushed through another dialect are not JSON; here they become base64 text.
            found.append(msgspec.json.encode(data) if is_binary(run.body, index) else data)
    return found
