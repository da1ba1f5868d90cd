"""The server as an ASGI application: finds the route, reads the body, runs the handler, answers."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from ..broker.broker import Broker
from ..broker.handout import Handout
from ..broker.pop import PopRequest
from ..errors import AckflowError
from ..onloop import OnLoop
from ..session import Session
from ..store.tx import Tx
from .http import (
    Answer,
    Call,
    Disconnected,
    Receive,
    Route,
    Router,
    Scope,
    Send,
    read_body,
    refuse,
)

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("ackflow.server")


class Limits(Struct, frozen=True):
    """What the server takes at most."""

    body_bytes: int = 64 * 1024 * 1024
    waiting_pops: int = 10_000


class TooManyWaiting(AckflowError):
    """Too many pops are waiting already; try again later."""

    code = "too_many_waiting"
    status = 429


class Internal(AckflowError):
    """The server failed at this request; its log says why."""

    code = "internal_error"
    status = 500


class Server:
    """Serves one session on one event loop; what handlers need of it are its methods."""

    def __init__(self, session: Session, routes: Iterable[Route], limits: Limits | None = None):
        self.session = session
        self.limits = limits or Limits()
        self.router = Router(routes)
        self.closing = asyncio.Event()
        self._onloop: OnLoop | None = None
        self._waiting = 0
        self._request_ids = secrets.token_hex(4)
        self._requests = 0

    # for handlers

    @property
    def broker(self) -> Broker:
        return self.session.broker

    @property
    def onloop(self) -> OnLoop:
        if self._onloop is None:
            self._onloop = OnLoop(self.session.broker)
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

    async def pop(self, call: Call, request: PopRequest, wait: float) -> Handout:
        """Pop for a client, as long as it is there: one that goes away strands no lease."""
        if wait <= 0:
            return await self.onloop.pop(request)
        if self._waiting >= self.limits.waiting_pops:
            raise TooManyWaiting(f"{self._waiting:,} pops are waiting already; try again later")
        self._waiting += 1
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
        finally:
            self._waiting -= 1
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
        route = call = None
        try:
            raw = scope.get("raw_path") or scope["path"].encode()
            route, params = self.router.find(scope["method"], raw.decode("latin-1"))
            call = Call(self, scope, receive, send, params)
            self.admit(call, route)
            call.body = await read_body(scope, receive, self.limits.body_bytes)
            answer = await route.handler(call)
        except Disconnected:
            return
        except AckflowError as error:
            answer = (route.refuse if route else refuse)(error)
            if allow := error.details.get("allow"):
                answer = answer._replace(headers=(*answer.headers, (b"allow", allow.encode())))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            answer = (route.refuse if route else refuse)(Internal())
        try:
            await self._answer(scope, send, answer)
            if answer.after is not None and call is not None:
                await answer.after(not call.left())
        finally:
            self.served(scope, route, answer, time.perf_counter() - started)

    def admit(self, call: Call, route: Route) -> None:
        """Refuse a caller whose token does not allow this route."""

    def served(self, scope: Scope, route: Route | None, answer: Answer, seconds: float) -> None:
        """Count and log an answered request."""
        if log.isEnabledFor(logging.INFO):
            log.info(
                "%s %s %d %.1f ms", scope["method"], scope["path"], answer.status, seconds * 1e3
            )

    async def _answer(self, scope: Scope, send: Send, answer: Answer) -> None:
        self._requests += 1
        headers: list[tuple[bytes, bytes]] = [
            (b"content-length", str(len(answer.body)).encode()),
            (b"x-request-id", f"{self._request_ids}-{self._requests}".encode()),
            *answer.headers,
        ]
        if answer.body or answer.status != 204:
            headers.append((b"content-type", answer.type))
        start: dict[str, Any] = {
            "type": "http.response.start", "status": answer.status, "headers": headers
        }  # fmt: skip
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})
