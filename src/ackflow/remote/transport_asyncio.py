"""Requests over aiohttp. Session code runs in a greenlet, which is suspended while an answer is
awaited, so that the methods of a session are written once (docs/decisions/greenlet.md)."""

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
from greenlet import getcurrent, greenlet

from ..errors import AckflowError, InvalidArgument, SessionClosed, Unavailable
from .protocol import HEADERS, Request, result, small_push
from .push_batching import PushBatcher
from .retry import Breaker, RetryPolicy

R = TypeVar("R")


async def spawn(call: Callable[[], R]) -> R:
    """Run a call in a greenlet; what it sends through `AsyncioTransport` is awaited here."""
    running = greenlet(call)
    step: Any = running.switch()
    while not running.dead:
        try:
            value = await step
        except BaseException as error:
            step = running.throw(error)
        else:
            step = running.switch(value)
    return step  # type: ignore[no-any-return]


class AsyncioTransport:
    """Sends requests to the first server that answers; a request that is safe to repeat is retried."""

    def __init__(
        self, bases: list[str], headers: dict[str, str], policy: RetryPolicy, ssl: Any = True
    ) -> None:
        self._bases = bases
        self._at = 0
        self._headers = {**HEADERS, **headers}
        self._policy = policy
        self._breaker = Breaker(policy)
        self._ssl = ssl
        self._http: aiohttp.ClientSession | None = None
        self._closed = False
        self._batcher = PushBatcher(self._send)
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def send(self, request: Request) -> Any:
        if small_push(request):
            return self._wait(self._batcher.send(request))
        return self._wait(self._send(request))

    def close(self) -> None:
        self._closed = True
        if self._http is not None:
            self._wait(self._http.close())

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        parent = getcurrent().parent
        if parent is None:
            coroutine.close()
            raise InvalidArgument("an asyncio session must be used through its awaitable methods")
        return parent.switch(coroutine)

    async def _send(self, request: Request) -> Any:
        self._breaker.check()
        attempt = 0
        while True:
            try:
                answer = await self._once(request)
            except (aiohttp.ClientError, TimeoutError, Unavailable) as error:
                if self._closed:
                    raise SessionClosed() from None
                self._at += 1
                sent = not isinstance(error, aiohttp.ClientConnectorError)
                pause = self._policy.pause(request, attempt, sent)
                if pause is None:
                    self._breaker.failed()
                    raise Unavailable(
                        f"{' and '.join(self._bases)} cannot be reached: {error}"
                    ) from None
                await self._sleep(pause * random.uniform(0.75, 1.25))
                attempt += 1
            except AckflowError:
                self._breaker.worked()
                raise
            else:
                self._breaker.worked()
                return answer

    async def _once(self, request: Request) -> Any:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl)
            self._http = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(
            connect=self._policy.connect_seconds,
            sock_read=self._policy.read_seconds + request.wait,
        )
        base = self._bases[self._at % len(self._bases)]
        async with self._http.request(
            request.method, base + request.path, data=io.BytesIO(request.body),
            headers=self._headers, timeout=timeout,
        ) as answer:  # fmt: skip
            return result(request, answer.status, answer.headers, await answer.read())
