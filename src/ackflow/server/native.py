"""Ackflow's own HTTP interface, `/v1/...`: the verbs of the broker in MessagePack or JSON.

`ackflow.connect("http://...")` uses it. A push sends segments as they are stored, a pop returns
them, and a settle names a lease and ranges instead of a list of messages.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from .. import __version__
from ..broker import audit
from ..broker.core.ack_and_pop import NextHandout, ack_and_pop
from ..broker.core.handout import Handout
from ..broker.core.leases import read as read_lease
from ..broker.core.push import Answer as Places
from ..broker.registry import VERBS, Verb
from ..broker.requests import PopRequest, PushRequest
from ..errors import AckflowError, NotFound
from ..options import MAX_BATCH, MAX_PUSHES
from ..remote import wire
from ..remote.wire import JSON, MSGPACK, Codec, PackedHandout, PushOutcome
from . import authz
from .http import (
    LARGE_BODY,
    Call,
    Counted,
    Handler,
    Param,
    Response,
    Route,
    Undelivered,
    at_most,
    json,
)


class OneOfPushes(PushRequest, Counted):
    """One of several pushes in a request."""


Pushes = Annotated[list[PushRequest], msgspec.Meta(max_length=MAX_PUSHES)]
_push, _pop = Codec(PushRequest), Codec(PopRequest)
_pushes = Codec(Annotated[list[OneOfPushes], msgspec.Meta(max_length=MAX_PUSHES)])
SECONDS = {"type": "number", "minimum": 0, "maximum": 3600}


class About(msgspec.Struct):
    """Version, store id and time of the server."""

    version: str
    store: int
    now: int


_MSGPACK = MSGPACK.encode()


def _encodings(call: Call) -> tuple[str, str, bytes]:
    """The encodings of the request and of its response, and the content type of the latter."""
    found: tuple[str, str, bytes] | None = call.from_head.get("encodings")
    if found is None:
        sent = call.headers.get(b"content-type", b"").startswith(_MSGPACK)
        wanted = MSGPACK if _MSGPACK in call.headers.get(b"accept", b"") else JSON
        found = (MSGPACK if sent else JSON), wanted, wanted.encode()
        call.from_head["encodings"] = found
    return found


def _respond(call: Call, value: Any, undelivered: Undelivered = None) -> Response:
    _, encoding, type = _encodings(call)
    return Response(200, wire.write(value, encoding), type, (), undelivered)


async def about(call: Call) -> Response:
    broker = call.server.broker
    return _respond(call, About(__version__, broker.store.id, broker.clock.now()))


async def push(call: Call) -> Response:
    """Append messages; they are on disk when the response is sent."""
    encoding = _encodings(call)[0]
    if len(call.body) <= LARGE_BODY:
        request = _read_push(call.body, encoding)
    else:
        request = await call.server.thread(partial(_read_push, call.body, encoding))
    return _respond(call, await _submit(call, request))


async def pushes(call: Call) -> Response:
    """Run several pushes in one commit; each has its own result."""
    encoding = _encodings(call)[0]
    if len(call.body) <= LARGE_BODY:
        requests = _read_pushes(call.body, encoding)
    else:
        requests = await call.server.thread(partial(_read_pushes, call.body, encoding))
    return _respond(call, await asyncio.gather(*[_push_one(call, some) for some in requests]))


def _read_push(body: bytes, encoding: str) -> PushRequest:
    request: PushRequest = _push.read(body, encoding)
    request.check()
    return request


def _read_pushes(body: bytes, encoding: str) -> list[PushRequest | AckflowError]:
    """The pushes of a request, each valid or the reason why it is not."""
    with at_most(MAX_PUSHES):
        requests: list[PushRequest] = _pushes.read(body, encoding)
    return [_checked(request) for request in requests]


def _checked(request: PushRequest) -> PushRequest | AckflowError:
    try:
        request.check()
        return request
    except AckflowError as refusal:
        return refusal


def _read_call(verb: Verb, body: bytes, encoding: str) -> tuple[bool, tuple[Any, ...]]:
    synced, arguments = wire.arguments_codec(verb).read(body, encoding)
    verb.check(arguments)
    return synced, arguments


async def _push_one(call: Call, request: PushRequest | AckflowError) -> PushOutcome:
    try:
        if isinstance(request, AckflowError):
            raise request
        return PushOutcome(await _submit(call, request))
    except AckflowError as refusal:
        return PushOutcome(error=wire.encode_error(refusal))


def _submit(call: Call, request: PushRequest) -> "asyncio.Future[Places]":
    server, messages = call.server, 0
    for chunk in request.chunks:
        messages += chunk.count
        server.allow(call, chunk.queue)
    server.check_batch(messages)
    authz.own_key(call, request)
    return server.loop_broker.push(request)


async def pop(call: Call) -> Response:
    """Lease messages, waiting up to `wait` seconds for the first."""
    call.check_small_body()
    request: PopRequest = _pop.read(call.body, _encodings(call)[0])
    request.check()
    call.server.allow(call, request.queue)
    handout = await call.server.pop(call, request, call.seconds("wait", 0.0, 3600.0))
    return _respond(call, wire.pack(handout), call.server.release_if_undelivered(handout))


async def run(call: Call) -> Response:
    """Run any other verb; the body is [synced, [arguments in order]]."""
    verb = VERBS.get(call.params["verb"])
    if verb is None:
        raise NotFound(f"unknown verb {call.params['verb']!r}; known verbs: {', '.join(VERBS)}")
    call.server.require(call, verb.role)
    server, encoding = call.server, _encodings(call)[0]
    if len(call.body) <= LARGE_BODY:
        synced, arguments = _read_call(verb, call.body, encoding)
        function = authz.authorized(call, verb, arguments)
    else:
        synced, arguments = await server.thread(partial(_read_call, verb, call.body, encoding))
        function = await server.thread(partial(authz.authorized, call, verb, arguments))
    for argument in arguments:
        if isinstance(argument, PopRequest):
            server.check_batch(argument.batch)
    if verb.name in audit.ADMINISTRATION:
        function = audit.of_verb(
            function, verb.name, audit.Actor.of(call.who, call.client), arguments
        )
    if verb.read_only:
        return await _read(call, function, arguments)
    if verb.in_slices:
        result = await server.do_in_slices(function, *arguments)
    elif verb.run in (ack_and_pop, read_lease):
        doing = partial(server.do, function, synced or verb.synced, *arguments)
        popping = verb.run is ack_and_pop
        batch = arguments[1].batch if popping else MAX_BATCH
        result = await server.hand_out(call, batch, doing, leases=popping)
    else:
        result = await server.do(function, synced or verb.synced, *arguments)
    if not verb.answers:
        return _respond(call, None)
    result = authz.visible(call, result)
    if not isinstance(result, Handout):
        return _respond(call, result)
    given_back = server.release_if_undelivered(result) if isinstance(result, NextHandout) else None
    return _respond(call, wire.pack(result), given_back)


async def _read(call: Call, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Response:
    """Run a read-only verb, and encode its answer beside the event loop."""
    server, (_, encoding, type) = call.server, _encodings(call)

    def read() -> bytes:
        found = authz.visible(call, server.read_now(function, *arguments))
        if isinstance(found, Handout):  # of a reader
            found = wire.pack(found)
        return wire.write_in_parts(found, encoding)

    return Response(200, await server.in_read_lane_if_room(read), type)


async def upkeep(call: Call) -> Response:
    """Run one round of upkeep now."""
    return _respond(call, await call.server.in_read_lane(call.server.broker.upkeep))


class NativeError(msgspec.Struct):
    """The body of an error response."""

    error: wire.ErrorInfo


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    return Route(
        method, path, handler, tag="native", encode_error=_error_response, error=NativeError, **more
    )


def _error_response(error: AckflowError) -> Response:
    return json(NativeError(wire.encode_error(error)), error.status)


ROUTES = (
    _route("GET", "/v1/about", about, role="read-only", summary="Version, store id and time",
           responses={200: About}, checks_queues=True),
    _route("POST", "/v1/push", push, summary="Push segments", body=PushRequest,
           responses={200: Places}, checks_queues=True),
    _route("POST", "/v1/pushes", pushes, summary="Run several pushes in one request",
           body=Pushes, responses={200: list[PushOutcome]}, checks_queues=True),
    _route("POST", "/v1/pop", pop, summary="Lease messages", body=PopRequest,
           query=(Param("wait", SECONDS, "Seconds to wait for the first message"),),
           responses={200: PackedHandout}, checks_queues=True),
    _route("POST", "/v1/upkeep", upkeep, role="admin", summary="Run one round of upkeep"),
    _route("POST", "/v1/verbs/{verb}", run, role="read-only",
           summary="Run any other verb; the body is [synced, [arguments]]", checks_queues=True),
)  # fmt: skip
