"""How requests and answers of the broker are written as bytes, for a server and its clients.

MessagePack carries segments as they are stored, offsets and bytes, so that no payload is decoded
on the way; JSON says the same in text. Errors travel as code, message and details.
"""

from array import array
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .. import errors
from ..broker.core.handout import Handout, Run
from ..broker.core.push import Answer as Places
from ..errors import AckflowError, InvalidArgument
from ..store.records import Body, Rest

T = TypeVar("T")
MSGPACK = "application/msgpack"
JSON = "application/json"


class Told(Struct, omit_defaults=True):
    """An error as it is told to a client, with the error that caused it, if that is one of ours."""

    code: str
    message: str
    details: dict[str, Any] = {}
    cause: "Told | None" = None


class Pushed(Struct, omit_defaults=True):
    """The answer to one of several pushes: where its messages lie, or why it was refused."""

    places: Places | None = None
    error: Told | None = None


def tell(error: AckflowError) -> Told:
    cause = error.__cause__
    told = tell(cause) if isinstance(cause, AckflowError) else None
    return Told(error.code, error.message, error.details, told)


def untell(told: Told) -> AckflowError:
    """The error a client raises; a code of a newer server becomes the error of the whole family."""
    kind = errors.by_code(told.code)
    error = kind(told.message, **told.details)
    if kind is AckflowError:
        error.code = told.code  # type: ignore[misc]
    if told.cause is not None:
        error.__cause__ = untell(told.cause)
    return error


def _plain(value: Any) -> Any:
    """Write what is no type of the encoding's own."""
    if isinstance(value, AckflowError):
        return tell(value)
    if isinstance(value, array):
        return value.tobytes()
    raise TypeError(f"{type(value).__name__} is not written")


def _special(kind: Any, value: Any) -> Any:
    """Read what `_plain` wrote."""
    if kind is object:
        return value
    if isinstance(kind, type) and issubclass(kind, AckflowError):
        return untell(msgspec.convert(value, Told))
    if kind is array or getattr(kind, "__origin__", None) is array:
        if not isinstance(value, bytes) or len(value) % 4:
            raise ValueError("offsets are 32-bit integers in bytes")
        read = array("i")
        read.frombytes(value)
        return read
    raise TypeError(f"{kind} is not read")


class Codec:
    """Writes any value and reads values of one type, in both encodings."""

    def __init__(self, kind: Any) -> None:
        self._msgpack = msgspec.msgpack.Decoder(kind, dec_hook=_special)
        self._json = msgspec.json.Decoder(kind, dec_hook=_special, strict=False)

    def read(self, data: bytes, encoding: str) -> Any:
        try:
            return (self._msgpack if encoding == MSGPACK else self._json).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"the body is not what is expected: {error}") from None


_msgpack = msgspec.msgpack.Encoder(enc_hook=_plain)
_json = msgspec.json.Encoder(enc_hook=_plain)


def write(value: Any, encoding: str) -> bytes:
    return (_msgpack if encoding == MSGPACK else _json).encode(value)


class Handed(Struct, array_like=True):
    """A run on its way: only the payloads handed out, offsets counted from the first of them."""

    lane: int
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


class Popped(Struct):
    """The answer of a pop on its way."""

    queue: str
    group: str
    store: int
    token: int | None = None
    expires_at: int | None = None
    runs: list[Handed] = []
    why: str | None = None
    retry_at: int | None = None


def pack(handout: Handout) -> Popped:
    h = handout
    runs = [_cut(run) for run in h.runs]
    return Popped(h.queue, h.group, h.store, h.token, h.expires_at, runs, h.why, h.retry_at)


def unpack(popped: Popped) -> Handout:
    p = popped
    runs = [
        Run(r.lane, r.partition, r.priority, r.lo, r.lo, r.lo + len(r.ends) // 4, r.created_at,
            Body(memoryview(r.ends).cast("i"), r.data, r.rest), r.deliveries, r.failures,
            r.redelivered, r.number, r.pending)
        for r in p.runs
    ]  # fmt: skip
    return Handout(p.queue, p.group, p.store, p.token, p.expires_at, runs, p.why, p.retry_at)


def _cut(run: Run) -> Handed:
    """Leave out what of the segment was not handed out."""
    body, lo, hi = run.body.joined(), run.lo - run.first, run.hi - run.first
    ends, data, rest = bytes(body.ends), body.data, body.rest
    if lo or hi < len(body.ends):
        start = body.ends[lo - 1] if lo else 0
        data = data[start : body.ends[hi - 1]]
        ends = array("i", [end - start for end in body.ends[lo:hi]]).tobytes()
        rest = None if rest is None else rest.slice(lo, hi)
    return Handed(run.lane, run.partition, run.priority, run.lo, run.created_at, ends, data, rest,
                  run.deliveries, run.failures, run.redelivered, run.number, run.pending)  # fmt: skip
