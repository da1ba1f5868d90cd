"""Requests over aiohttp, for code that runs in a greenlet (`spawn`)."""

import asyncio
import io
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from ..broker.aio import awaited
from ..errors import AckflowError, SessionClosed, Unavailable
from .protocol import HEADERS, Request, result, small_push
from .push_batching import PushBatcher
from .retry import Breaker, RetryPolicy


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
            return awaited(self._batcher.send(request))
        return awaited(self._send(request))

    def close(self) -> None:
        self._closed = True
        if self._http is not None:
            awaited(self._http.close())

    async def _send(self, request: Request) -> Any:
        self._breaker.check()
        attempt = 0
        while True:
            if self._closed:
                raise SessionClosed()
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
