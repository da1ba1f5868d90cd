"""The server as an ASGI application: finds the route, reads the body, runs the handler, answers."""

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from ..broker.access_tokens import queue_of_lease
from ..broker.aio import OnLoop
from ..broker.broker import Broker
from ..broker.core.handout import Handout
from ..broker.requests import PopRequest
from ..errors import AckflowError, BatchTooLarge, Internal, TooManyWaiting
from ..options import MAX_BATCH, Counting
from ..session.session import Session
from ..store.tx import Tx
from .authn import Auth, challenge
from .cors import Cross, Headers
from .http import (
    Answer,
    Call,
    Disconnected,
    NotAllowed,
    Receive,
    Refuse,
    Role,
    Route,
    Router,
    Scope,
    Send,
    read_body,
)
from .logs import request_id
from .request_log import Observer

LARGE = 64 * 1024
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("ackflow.server")
_sane_id = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch


class Limits(Struct, frozen=True):
    """What the server takes at most."""

    body_bytes: int = 64 * 1024 * 1024
    batch: int = MAX_BATCH
    waiting_pops: int = 10_000


class Server:
    """Serves one session on one event loop; what handlers need of it are its methods."""

    def __init__(
        self, session: Session, routes: Iterable[Route], limits: Limits | None = None, *,
        require_token: bool = False, cross: Cross | None = None, observer: Observer | None = None,
        retry_limit_counts: Counting = "failures",
    ) -> None:  # fmt: skip
        self.session = session
        self.limits = limits or Limits()
        self.router = Router(routes)
        self.auth = Auth(self.broker, require_token)
        self.cross = cross or Cross()
        self.observer = observer or Observer()
        self.retry_limit_counts = retry_limit_counts  # in the Queen dialect
        self.scraping = asyncio.Lock()
        self.started = time.monotonic()
        self.document: bytes | None = None  # OpenAPI, written when first asked for
        self.closing = asyncio.Event()
        self._onloop: OnLoop | None = None
        self.waiting = 0
        self._request_ids = secrets.token_hex(4)
        self._requests = 0

    # for handlers

    @property
    def broker(self) -> Broker:
        broker = self.session.broker
        assert isinstance(broker, Broker), "a server serves a database, not another server"
        return broker

    @property
    def onloop(self) -> OnLoop:
        if self._onloop is None:
            self._onloop = OnLoop(self.broker)
        return self._onloop

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run a verb of the broker in the next group commit."""
        return self.onloop.do(verb, synced, *args, **kwargs)

    def thread(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a blocking call, such as a method of the session, beside the loop."""
        return self.onloop.thread(call)

    def allow(self, call: Call, queue: str) -> None:
        """Refuse when the token of the call is not good for a queue; called before any write."""
        self.auth.allow(call, queue)

    def sees(self, call: Call, queue: str) -> bool:
        """Whether a queue may be shown to the caller; for lists."""
        return self.auth.sees(call, queue)

    def require(self, call: Call, role: Role) -> None:
        """Refuse when the token of the call has not this role; for routes that learn it late."""
        self.auth.require(call, role)

    def allow_all(self, call: Call) -> None:
        """Refuse when the token of the call is not good for every queue."""
        self.auth.allow_all(call)

    async def allow_lease(self, call: Call, *tokens: int) -> None:
        """Refuse when a lease is of a queue that the token of the call is not good for."""
        if call.who is None or call.who.may_everywhere(call.role):
            return
        for token in tokens:
            queue = await self.onloop.look(queue_of_lease, token)
            if queue is not None:
                self.allow(call, queue)

    def check_batch(self, messages: int) -> None:
        """Refuse to push or pop more messages at once than the server takes."""
        if messages > self.limits.batch:
            most = self.limits.batch
            raise BatchTooLarge(f"the server takes at most {most:,} messages at once")

    async def pop(self, call: Call, request: PopRequest, wait: float) -> Handout:
        """Pop for a client, as long as it is there: one that goes away strands no lease."""
        self.check_batch(request.batch)
        if wait <= 0:
            return await self.onloop.pop(request)
        if self.waiting >= self.limits.waiting_pops:
            raise TooManyWaiting(
                f"{self.waiting:,} pops are waiting already; try again later", retry_after=1
            )
        self.waiting += 1
        call.waits = True
        popping = asyncio.ensure_future(self.onloop.pop(request, wait))
        leaving = [
            asyncio.ensure_future(self.closing.wait()),
            asyncio.ensure_future(call.leaves()),
        ]
        try:
            await asyncio.wait([popping, *leaving], return_when=asyncio.FIRST_COMPLETED)
            if popping.done():
                return popping.result()
            popping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await popping
            return Handout(request.queue, request.group, self.broker.store.id)
        except asyncio.CancelledError:
            if not popping.cancel() and popping.exception() is None:
                token = popping.result().token
                if token is not None:
                    await self.onloop.give_back(token)
            raise
        finally:
            self.waiting -= 1
            for task in leaving:
                task.cancel()

    def returning(self, handout: Handout) -> Callable[[bool], Awaitable[None]] | None:
        """What to do after a hand-out was sent: give it back if the client had gone."""
        token = handout.token
        if token is None:
            return None

        async def after(arrived: bool) -> None:
            if not arrived:
                await self.onloop.give_back(token)

        return after

    # for ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def close(self) -> None:
        """Let waiting pops answer, so that the server can end."""
        self.closing.set()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        call = Call(self, scope, receive, send, {})
        call.id = self._id_of(call)
        request_id.set(call.id)
        route: Route | None = None
        cross: Headers = ()
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        try:
            cross = self.cross.check(call)
            route, call.params = self.router.find(scope["method"], path)
            self.auth.admit(call, route)
            call.body = await read_body(scope, receive, self.limits.body_bytes)
            answer = await route.handler(call)
        except Disconnected:
            return
        except AckflowError as error:
            refuse = route.refuse if route else self.router.dialect(path)
            answer = self._refuse(call, refuse, error, cross)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            answer = (route.refuse if route else self.router.dialect(path))(Internal())
        try:
            await self._answer(call, answer, cross)
            if answer.after is not None:
                await answer.after(not call.left())
        finally:
            self.observer.served(call, route, answer, time.perf_counter() - started)

    def _refuse(self, call: Call, refuse: Refuse, error: AckflowError, cross: Headers) -> Answer:
        """An error in the words of its dialect, with the headers that belong to it."""
        allow = error.details.get("allow")
        if isinstance(error, NotAllowed) and allow and call.scope["method"] == "OPTIONS":
            return self.cross.options(allow, cross)
        answer = refuse(error)
        more = []
        if allow:
            more.append((b"allow", allow.encode()))
        if (seconds := error.details.get("retry_after")) is not None:
            more.append((b"retry-after", str(seconds).encode()))
        if (challenged := challenge(error)) is not None:
            more.append((b"www-authenticate", challenged))
        return answer._replace(headers=(*answer.headers, *more)) if more else answer

    def _id_of(self, call: Call) -> str:
        """The id a request brings, when it can be written anywhere; else one of our own."""
        given = call.header(b"x-request-id")
        if given and _sane_id(given):
            return given
        self._requests += 1
        return f"{self._request_ids}-{self._requests}"

    async def _answer(self, call: Call, answer: Answer, cross: Headers) -> None:
        headers: list[tuple[bytes, bytes]] = [
            (b"x-request-id", call.id.encode()),
            *answer.headers,
        ]
        if cross:
            headers += [header for header in cross if header not in headers]
        if answer.body or answer.status != 204:
            headers.append((b"content-length", str(len(answer.body)).encode()))
            headers.append((b"content-type", answer.type))
        start: dict[str, Any] = {
            "type": "http.response.start", "status": answer.status, "headers": headers
        }  # fmt: skip
        send = call.send
        await send(start)
        body = {"type": "http.response.body", "body": answer.body}
        if answer.after is not None and len(answer.body) > LARGE:
            # The second part waits until most of the first is sent, so that a client that has gone
            # meanwhile is noticed.
            await send({**body, "more_body": True})
            body["body"] = b""
        await send(body)
