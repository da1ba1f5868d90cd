"""The encoding of requests and answers, shared by the server and its clients.

MessagePack carries segments as they are stored, offsets and bytes, so that no payload is decoded
in transit; JSON carries the same as text. An error is sent as code, message and details.
"""

from array import array
from base64 import b64decode
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

from .. import errors
from ..broker.core.ack_and_pop import NextHandout
from ..broker.core.handout import Handout, MessageRun
from ..broker.core.push import Answer as Places
from ..broker.core.settle import Outcome
from ..broker.verb import Verb
from ..errors import AckflowError, InvalidArgument
from ..ids import LaneId
from ..store.records import Body, Rest

T = TypeVar("T")
MSGPACK = "application/msgpack"
JSON = "application/json"
PART = 256  # items of a long list that are encoded at once


class ErrorInfo(Struct, omit_defaults=True):
    """An error as it is sent, with the error that caused it if that is an `AckflowError`."""

    code: str
    message: str
    details: dict[str, Any] = {}
    cause: "ErrorInfo | None" = None


class PushOutcome(Struct, omit_defaults=True):
    """The answer to one of several pushes: where its messages are stored, or the error."""

    places: Places | None = None
    error: ErrorInfo | None = None


def encode_error(error: AckflowError) -> ErrorInfo:
    cause = error.__cause__
    inner = encode_error(cause) if isinstance(cause, AckflowError) else None
    return ErrorInfo(error.code, error.message, error.details, inner)


def decode_error(info: ErrorInfo) -> AckflowError:
    """The error a client raises; an unknown code, of a newer server, becomes an `AckflowError`."""
    kind = errors.by_code(info.code)
    error = kind(info.message, **info.details)
    if kind is AckflowError:
        error.code = info.code  # type: ignore[misc]
    if info.cause is not None:
        error.__cause__ = decode_error(info.cause)
    return error


def _encode_hook(value: Any) -> Any:
    """Convert types that msgspec does not know."""
    if isinstance(value, AckflowError):
        return encode_error(value)
    if isinstance(value, array):
        return value.tobytes()
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def _decode_hook(kind: Any, value: Any) -> Any:
    """The inverse of `_encode_hook`."""
    if kind is object:
        return value
    if isinstance(kind, type) and issubclass(kind, AckflowError):
        return decode_error(msgspec.convert(value, ErrorInfo))
    if kind is array or getattr(kind, "__origin__", None) is array:
        return _offsets(value)
    raise TypeError(f"{kind} cannot be decoded")


def _offsets(value: Any) -> "array[int]":
    """Read offsets: a list of integers, or 32-bit integers in bytes, which JSON has as base64."""
    read = array("i")
    try:
        if isinstance(value, list):
            read.extend(value)
        else:
            read.frombytes(b64decode(value, validate=True) if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("offsets must be a list of 32-bit integers, or their bytes") from None
    return read


class Codec:
    """Decodes values of one type from either encoding."""

    def __init__(self, kind: Any) -> None:
        self._msgpack = msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook)
        self._json = msgspec.json.Decoder(kind, dec_hook=_decode_hook, strict=False)

    def read(self, data: bytes, encoding: str) -> Any:
        try:
            return (self._msgpack if encoding == MSGPACK else self._json).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"invalid request body: {error}") from None


_msgpack = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_json = msgspec.json.Encoder(enc_hook=_encode_hook)


@cache
def arguments_codec(verb: Verb) -> Codec:
    """Decodes the body of a call: [on disk before the answer, [arguments in order]]."""
    hints = get_type_hints(verb.run)
    arguments = tuple.__class_getitem__(tuple(hints[name] for name in verb.parameters))
    return Codec(tuple.__class_getitem__((bool, arguments)))


@cache
def result_codec(verb: Verb) -> Codec:
    """Decodes the answer of a call; a hand-out is sent packed."""
    result = get_type_hints(verb.run)["return"] if verb.answers else None
    return Codec(PackedHandout if result in (Handout, NextHandout) else result)


def write(value: Any, encoding: str) -> bytes:
    return (_msgpack if encoding == MSGPACK else _json).encode(value)


def write_in_parts(value: Any, encoding: str) -> bytes:
    """Encode like `write`, and let other threads have their turn between the items of a long list."""
    if type(value) is not list or len(value) <= PART:
        return write(value, encoding)
    parts = [write(value[at : at + PART], encoding) for at in range(0, len(value), PART)]
    if encoding == JSON:
        return b"[%b]" % b",".join([part[1:-1] for part in parts])
    head = b"\xdd" + len(value).to_bytes(4)
    return head + b"".join([part[1 if part[0] & 0xF0 == 0x90 else 3 :] for part in parts])


class PackedRun(Struct, array_like=True):
    """A run as it is sent: only the payloads delivered, offsets counted from the first of them."""

    lane: LaneId
    partition: str
    priority: int
    lo: int
    created_at: int
    ends: bytes
    data: bytes
    rest: Rest | None
    deliveries: int
    failures: int
    redelivered: bool
    number: int
    pending: int


class PackedHandout(Struct):
    """A hand-out as it is sent."""

    queue: str
    group: str
    store: int
    token: int | None = None
    expires_at: int | None = None
    runs: list[PackedRun] = []
    why: str | None = None
    retry_at: int | None = None
    outcomes: list[Outcome] = []  # of what was settled before
    again: bool = False  # a pop that follows may find messages


def pack(handout: Handout) -> PackedHandout:
    h = handout
    runs = [_pack_run(run) for run in h.runs]
    outcomes = h.outcomes if isinstance(h, NextHandout) else []
    return PackedHandout(
        h.queue, h.group, h.store, h.token, h.expires_at, runs, h.why, h.retry_at, outcomes, h.again
    )


def unpack(packed: PackedHandout) -> Handout:
    p = packed
    runs = [
        MessageRun(r.lane, r.partition, r.priority, r.lo, r.lo, r.lo + len(r.ends) // 4, r.created_at,
            Body(memoryview(r.ends).cast("i"), r.data, r.rest), r.deliveries, r.failures,
            r.redelivered, r.number, r.pending)
        for r in p.runs
    ]  # fmt: skip
    return NextHandout(
        p.queue, p.group, p.store, p.token, p.expires_at, runs, p.why, p.retry_at,
        again=p.again, outcomes=p.outcomes,
    )  # fmt: skip


def _pack_run(run: MessageRun) -> PackedRun:
    """Leave out what the segment has before and after the run."""
    body, lo, hi = run.body.joined(), run.lo - run.first, run.hi - run.first
    data, rest = body.data, body.rest
    if not lo and hi == len(body.ends):
        ends = bytes(body.ends)
    else:
        start = body.ends[lo - 1] if lo else 0
        data = data[start : body.ends[hi - 1]]
        ends = array("i", [end - start for end in body.ends[lo:hi]]).tobytes()
        rest = None if rest is None else rest.slice(lo, hi)
    return PackedRun(run.lane, run.partition, run.priority, run.lo, run.created_at, ends, data, rest,
                  run.deliveries, run.failures, run.redelivered, run.number, run.pending)  # fmt: skip
