"""Requests to a server and the interpretation of its answers, without I/O."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..broker.core.push import Answer
from ..broker.requests import Chunk, PopRequest, PushRequest, digest_of
from ..broker.verb import BY_FUNCTION
from ..errors import InvalidArgument, SessionClosed, Unauthenticated, Unavailable
from ..model import Upkeep
from ..options import MAX_BATCH
from . import wire
from .wire import MSGPACK, Codec, ErrorInfo, PackedHandout, PushOutcome

HEADERS = {"content-type": MSGPACK, "accept": MSGPACK}


class Request(NamedTuple):
    """One request. `safe`: it may be repeated after a failure that leaves open whether the server
    received it."""

    method: str
    path: str
    body: bytes
    answer: Codec
    safe: bool
    wait: float = 0.0


class About(msgspec.Struct):
    """Facts about the server."""

    version: str
    store: int
    now: int


class _Failed(msgspec.Struct):
    error: ErrorInfo


PUSH = "/v1/push"
SWEEP_SECONDS = 3600.0  # a seek, purge or delete may take this much longer than other calls
PUSH_BYTES = 60 * 1024 * 1024  # of one push: a server takes requests of 64 MiB
SMALL_BYTES = 16 * 1024
_PUSHED = Codec(list[PushOutcome])
_ABOUT, _PLACES, _POPPED, _UPKEEP = Codec(About), Codec(Answer), Codec(PackedHandout), Codec(Upkeep)
_failed = msgspec.json.Decoder(_Failed).decode
_failed_msgpack = msgspec.msgpack.Decoder(_Failed).decode


def about() -> Request:
    return Request("GET", "/v1/about", b"", _ABOUT, True)


def push(request: PushRequest) -> Request:
    body = wire.write(request, MSGPACK)
    return Request("POST", PUSH, body, _PLACES, request.key is not None)


def parts(request: PushRequest) -> Iterator[PushRequest]:
    """Split a push into several, each within the limits of a server and with its own key."""
    # The first part keeps the key, so that another body under the same key is refused.
    stem = hashlib.blake2b((request.key or "").encode(), digest_size=16).hexdigest()
    some: list[Chunk] = []
    size = count = number = 0
    for chunk in [*request.chunks, None]:
        length = 0 if chunk is None else len(wire.write(chunk, MSGPACK))
        more = 0 if chunk is None else chunk.count
        if some and (chunk is None or size + length > PUSH_BYTES or count + more > MAX_BATCH):
            number += 1
            key = request.key if number == 1 else f"{stem}#{number}"
            yield PushRequest(some, key, digest_of(some))
            some, size, count = [], 0, 0
        if chunk is not None:
            some.append(chunk)
            size, count = size + length, count + more


def small_push(request: Request) -> bool:
    """Whether a request is a push that may be batched with others."""
    return request.path == PUSH and len(request.body) <= SMALL_BYTES and request.safe


def pushes(some: Sequence[Request]) -> Request:
    """Several small pushes in one request; a list in MessagePack is its length and its items."""
    body = b"".join([b"\xdc", len(some).to_bytes(2, "big"), *[push.body for push in some]])
    return Request("POST", "/v1/pushes", body, _PUSHED, True)


def pop(request: PopRequest, wait: float) -> Request:
    body = wire.write(request, MSGPACK)
    path = "/v1/pop" if wait <= 0 else f"/v1/pop?wait={wait:.3f}"
    return Request("POST", path, body, _POPPED, request.token is not None, wait)


def upkeep() -> Request:
    return Request("POST", "/v1/upkeep", b"", _UPKEEP, True)


def verb(function: Callable[..., Any], synced: bool, arguments: tuple[Any, ...]) -> Request:
    found = BY_FUNCTION[function]
    body = wire.write((synced, (*arguments, *found.defaults[len(arguments) :])), MSGPACK)
    path = f"/v1/verbs/{found.name}"
    wait = SWEEP_SECONDS if found.in_slices else 0.0
    return Request("POST", path, body, wire.result_codec(found), found.repeatable, wait)


def result(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> Any:
    """The value of an answer; raises what the server refused."""
    if status == 200:
        return request.answer.read(body, MSGPACK)
    packed = headers.get("content-type", "").startswith(MSGPACK)
    try:
        told = (_failed_msgpack if packed else _failed)(body).error
    except msgspec.MsgspecError:
        raise Unavailable(
            f"the server answered with HTTP status {status}, which is not an answer of Ackflow"
        ) from None
    error = wire.decode_error(told)
    if isinstance(error, SessionClosed):
        raise Unavailable("the server is shutting down")  # its session, not the caller's
    if isinstance(error, Unauthenticated):
        hint = error.details.get("hint") if error.details.get("error") else None
        why = f"{error.message}: {hint or 'the server requires a token'}"
        raise Unauthenticated(f"{why}; pass it to connect() as token=", **error.details)
    raise error


def bases(url: str) -> list[str]:
    """The base URLs of the servers, separated by commas: http://one:8000,http://two:8000."""
    found = []
    for part in url.split(","):
        pieces = urlsplit(part.strip())
        if pieces.scheme not in ("http", "https") or not pieces.netloc:
            raise InvalidArgument(f"{part.strip()!r} is not a valid server URL")
        if pieces.query or pieces.fragment:
            raise InvalidArgument(
                f"{part.strip()!r} must consist of scheme, host, port and path only"
            )
        found.append(f"{pieces.scheme}://{pieces.netloc}{pieces.path.rstrip('/')}")
    return found
