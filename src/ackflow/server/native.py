"""Ackflow's own dialect: the verbs of the broker as they are, in MessagePack or JSON.

It is what `ackflow.connect("http://...")` speaks. A push brings segments as they will be stored, a
pop answers with them, and a settle names a lease and ranges instead of a list of messages.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from .. import __version__
from ..broker.core.handout import Handout
from ..broker.core.push import Answer as Places
from ..broker.registry import VERBS, Verb
from ..broker.requests import PopRequest, PushRequest
from ..errors import AckflowError, NotFound
from ..remote import wire
from ..remote.wire import JSON, MSGPACK, Codec, PackedHandout, PushOutcome
from . import authz
from .http import Answer, Call, Param, Route, json

_push, _pushes, _pop = Codec(PushRequest), Codec(list[PushRequest]), Codec(PopRequest)
SECONDS = {"type": "number", "minimum": 0, "maximum": 3600}


class About(msgspec.Struct):
    """What a client has to know of the server."""

    version: str
    store: int
    now: int


def _given(call: Call) -> str:
    return MSGPACK if call.header(b"content-type").startswith(MSGPACK) else JSON


def _wanted(call: Call) -> str:
    return MSGPACK if MSGPACK in call.header(b"accept") else JSON


def _answer(call: Call, value: Any, after: Any = None) -> Answer:
    encoding = _wanted(call)
    return Answer(200, wire.write(value, encoding), encoding.encode(), (), after)


async def about(call: Call) -> Answer:
    broker = call.server.broker
    return _answer(call, About(__version__, broker.store.id, broker.clock.now()))


async def push(call: Call) -> Answer:
    """Append messages; they are on disk when this is answered."""
    request: PushRequest = _push.read(call.body, _given(call))
    return _answer(call, await _checked(call, request))


async def pushes(call: Call) -> Answer:
    """Append what several pushes bring, in one commit; each is answered for itself."""
    requests: list[PushRequest] = _pushes.read(call.body, _given(call))
    return _answer(call, await asyncio.gather(*[_push_one(call, some) for some in requests]))


async def _push_one(call: Call, request: PushRequest) -> PushOutcome:
    try:
        return PushOutcome(await _checked(call, request))
    except AckflowError as refusal:
        return PushOutcome(error=wire.encode_error(refusal))


def _checked(call: Call, request: PushRequest) -> "asyncio.Future[Places]":
    request.check()
    call.server.check_batch(sum(chunk.count for chunk in request.chunks))
    for queue in {chunk.queue for chunk in request.chunks}:
        call.server.allow(call, queue)
    pushing: asyncio.Future[Places] = call.server.onloop.push(request)
    return pushing


async def pop(call: Call) -> Answer:
    """Lease messages, waiting up to `wait` seconds for the first."""
    request: PopRequest = _pop.read(call.body, _given(call))
    request.check()
    call.server.allow(call, request.queue)
    handout = await call.server.pop(call, request, call.seconds("wait", 0.0, 3600.0))
    return _answer(call, wire.pack(handout), call.server.returning(handout))


async def run(call: Call) -> Answer:
    """Run any other verb; the body is [on disk first, [arguments in order]]."""
    verb = VERBS.get(call.params["verb"])
    if verb is None:
        raise NotFound(f"there is no verb {call.params['verb']!r}; there are {', '.join(VERBS)}")
    call.server.require(call, verb.role)
    synced, arguments = wire.arguments_codec(verb).read(call.body, _given(call))
    verb.check(arguments)
    await authz.check(call, verb, arguments)
    result = authz.visible(call, await _run(call, verb, synced, arguments))
    return _answer(call, wire.pack(result) if isinstance(result, Handout) else result)


async def _run(call: Call, verb: Verb, synced: bool, arguments: tuple[Any, ...]) -> Any:
    server = call.server
    if verb.read_only:
        await server.thread(server.broker.catch_up)
        return await server.onloop.look(verb.run, *arguments)
    result = await server.do(verb.run, synced or verb.synced, *arguments)
    return result if verb.answers else None


async def upkeep(call: Call) -> Answer:
    """Do one round of upkeep now."""
    return _answer(call, await call.server.thread(partial(call.server.broker.upkeep)))


class Failed(msgspec.Struct):
    """How an error is told."""

    error: wire.ErrorInfo


def _native(method: str, path: str, handler: Any, **more: Any) -> Route:
    return Route(method, path, handler, tag="native", refuse=_refuse, error=Failed, **more)


def _refuse(error: AckflowError) -> Answer:
    return json(Failed(wire.encode_error(error)), error.status)


ROUTES = (
    _native("GET", "/v1/about", about, role="read-only", summary="Version and store",
            answers={200: About}, checks=True),
    _native("POST", "/v1/push", push, summary="Push segments", body=PushRequest,
            answers={200: Places}, checks=True),
    _native("POST", "/v1/pushes", pushes, summary="Several pushes in one request",
            body=list[PushRequest], answers={200: list[PushOutcome]}, checks=True),
    _native("POST", "/v1/pop", pop, summary="Lease messages", body=PopRequest,
            query=(Param("wait", SECONDS, "Seconds to wait for a first message"),),
            answers={200: PackedHandout}, checks=True),
    _native("POST", "/v1/upkeep", upkeep, role="admin", summary="One round of upkeep"),
    _native("POST", "/v1/verbs/{verb}", run, role="read-only",
            summary="Any other verb: [on disk first, [arguments]]", checks=True),
)  # fmt: skip
