"""Message ids and lease tokens: numbers with a text form, so that neither needs a look-up table.

A message id is a UUIDv8 of (store 40 bits, lane 34, sequence 48). A token has 64 random bits; the
store replaces the last 24 with the location of the lease. Its text form is 11 URL-safe characters
or a UUID; both are accepted. Other rows that a wire format identifies by UUID are written like
messages, with a sequence that no message ever gets.
"""

import os
import secrets
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import Literal, NamedTuple, NewType
from uuid import UUID

from .errors import InvalidArgument

TOKEN_SPAN = 1 << 24
RANDOM_BYTES = 2048  # read from the system at once
_random: list[int] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.clear)

# Ids of rows are integers; their types keep one from being passed in place of another.
QueueId = NewType("QueueId", int)
PartitionId = NewType("PartitionId", int)
LaneId = NewType("LaneId", int)
GroupId = NewType("GroupId", int)
LeaseId = NewType("LeaseId", int)
BodyId = NewType("BodyId", int)
NO_LEASE = LeaseId(0)  # for a claim that is not leased, and a lease that is not stored yet

_VERSION = 0x8 << 76
_VARIANT = 0x2 << 62
_TAIL = (1 << 62) - 1
_LAST = (1 << 48) - 1
_KINDS = {"partition": _LAST, "queue": _LAST - 1, "dead letter": _LAST - 2, "trace": _LAST - 3,
          "query": _LAST - 4}  # fmt: skip
Kind = Literal["partition", "queue", "dead letter", "trace", "query"]


class MessagePosition(NamedTuple):
    """The location of a message: the store, the lane in the store, the sequence in the lane."""

    store: int
    lane: LaneId
    sequence: int


def new_store() -> int:
    return secrets.randbits(40)


def message_id(store: int, lane: int, sequence: int) -> str:
    return _text(store << 82 | lane << 48 | sequence)


@lru_cache(4096)
def id_prefix(store: int, lane: int) -> str:
    """Return the common prefix of a lane's message ids; the sequence follows as `:012x`."""
    return message_id(store, lane, 0)[:-12]


def parse_message_id(text: str) -> MessagePosition:
    bits = _bits(text, "message id")
    return MessagePosition(bits >> 82, LaneId(bits >> 48 & (1 << 34) - 1), bits & (1 << 48) - 1)


def row_uuid(kind: Kind, store: int, row: int) -> str:
    """Return the stable UUID of a row that is not a message."""
    return _text(store << 82 | row << 48 | _KINDS[kind])


def parse_row_uuid(kind: Kind, store: int, text: str) -> int:
    """Return the row of a UUID; raise if it is not a row of this kind in this store."""
    found = parse_message_id(text)
    if found.store != store or found.sequence != _KINDS[kind]:
        raise InvalidArgument(f"{text!r} is not the id of a {kind}")
    return found.lane


def partition_uuid(store: int, partition: PartitionId) -> str:
    return row_uuid("partition", store, partition)


@lru_cache(4096)
def parse_partition_uuid(store: int, text: str) -> PartitionId:
    return PartitionId(parse_row_uuid("partition", store, text))


def new_token(lease: int | None = None) -> int:
    """Return a new token; that of a stored lease satisfies (token - lease) % TOKEN_SPAN == 0.

    The text form never begins with a dash, which a command line would read as an option.
    """
    bits = 62 << 58
    while bits >> 58 == 62:
        bits = _random_bits()
    if lease is not None:
        bits += lease % TOKEN_SPAN - bits % TOKEN_SPAN
    return bits - (1 << 63)


def _random_bits() -> int:
    """Return 64 random bits; the system is asked for many at once."""
    while True:
        try:
            return _random.pop()  # one step, so that no two threads get the same
        except IndexError:
            _random.extend(array("Q", os.urandom(RANDOM_BYTES)))


def token_text(token: int) -> str:
    raw = (token + (1 << 63)).to_bytes(8, "big")
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def token_uuid(token: int) -> str:
    return _text((token + (1 << 63)) << 58)


def parse_token(text: str) -> int:
    """Parse a token in either text form."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a lease token must be text, got {type(text).__name__}")
    if len(text) == 11:
        try:
            raw = urlsafe_b64decode(text + "=")
        except ValueError:
            raise InvalidArgument(f"{text!r} is not a lease token") from None
        value = int.from_bytes(raw, "big") - (1 << 63)
        if len(raw) == 8 and token_text(value) == text:
            return value
        raise InvalidArgument(f"{text!r} is not a lease token")
    bits = _bits(text, "lease token")
    if bits & (1 << 58) - 1:
        raise InvalidArgument(f"{text!r} is not a lease token")
    return (bits >> 58) - (1 << 63)


def _text(bits: int) -> str:
    value = bits >> 74 << 80 | _VERSION | (bits >> 62 & 0xFFF) << 64 | _VARIANT | bits & _TAIL
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _bits(text: str, what: str) -> int:
    try:
        digits = text.replace("-", "")
        value = int(digits, 16) if len(digits) == 32 else UUID(text).int
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgument(f"{text!r} is not a {what}") from None
    if value >> 76 & 0xF != 0x8 or value >> 62 & 0x3 != 0x2:
        raise InvalidArgument(f"{text!r} is not a {what}")
    return value >> 80 << 74 | (value >> 64 & 0xFFF) << 62 | value & _TAIL
