"""Batching of small pushes: pushes that arrive while requests are in flight share the next one.

There is no timer: a push that finds no request in flight is sent at once.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ..broker.core.push import Answer
from ..errors import AckflowError, Unavailable
from ..options import MAX_PUSHES
from .protocol import Request, pushes
from .wire import PushOutcome, decode_error, encode_error

AT_ONCE = 2  # requests in flight: one is answered while the other is written
MOST_BYTES = 64 * 1024  # of pushes in one request, well below the limit of any server
Waiting = tuple[Request, "asyncio.Future[Answer]"]


class PushBatcher:
    """Sends pushes, at most `AT_ONCE` requests at a time; used on one event loop."""

    def __init__(self, send: Callable[[Request], Awaitable[Any]]) -> None:
        self._send = send
        self._under_way = 0
        self._waiting: deque[Waiting] = deque()
        self._carrying: set[asyncio.Task[None]] = set()

    async def send(self, push: Request) -> Answer:
        """Send one push, alone or with others; each gets its own answer."""
        if self._under_way >= AT_ONCE:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append((push, answer))
            return await answer
        self._under_way += 1
        try:
            return await self._send(push)  # type: ignore[no-any-return]
        finally:
            self._next()

    def _next(self) -> None:
        """A request was answered: send the pushes that arrived meanwhile."""
        self._under_way -= 1
        some: list[Waiting] = []
        size = 0
        while self._waiting and size < MOST_BYTES and len(some) < MAX_PUSHES:
            push, answer = self._waiting.popleft()
            if not answer.done():  # else its task was cancelled
                some.append((push, answer))
                size += len(push.body)
        if some:
            self._under_way += 1
            task = asyncio.ensure_future(self._carry(some))
            self._carrying.add(task)  # the loop itself holds tasks only weakly
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, some: list[Waiting]) -> None:
        answers = [PushOutcome(error=encode_error(Unavailable()))] * len(
            some
        )  # unless it is answered
        try:
            answers = await self._send(pushes([push for push, _ in some]))
        except AckflowError as error:
            answers = [PushOutcome(error=encode_error(error))] * len(some)
        finally:
            self._next()
            for (_, waiting), pushed in zip(some, answers, strict=True):
                if waiting.done():
                    continue
                if pushed.error is None:
                    waiting.set_result(pushed.places or [])
                else:
                    waiting.set_exception(decode_error(pushed.error))
