"""Requests over HTTP, from any thread."""

import random
import threading
from typing import Any

from urllib3.exceptions import HTTPError

from ..errors import AckflowError, SessionClosed, Unavailable
from .connections import Connections, NotSent
from .protocol import HEADERS, Request, result
from .retry import Breaker, RetryPolicy


class ThreadTransport:
    """Sends requests to the first server that answers; a request that is safe to repeat is retried."""

    def __init__(
        self, bases: list[str], headers: dict[str, str], policy: RetryPolicy, **tls: Any
    ) -> None:
        self._bases = bases
        self._at = 0
        self._policy = policy
        self._breaker = Breaker(policy)
        self._closed = threading.Event()
        sent = {**HEADERS, **headers}
        self._servers = [Connections(base, sent, policy.connect_seconds, **tls) for base in bases]

    def send(self, request: Request) -> Any:
        self._breaker.check()
        attempt = 0
        while True:
            try:
                answer = self._once(request)
            except (HTTPError, Unavailable) as error:
                if self._closed.is_set():
                    raise SessionClosed() from None
                self._at += 1
                sent = not isinstance(error, NotSent)
                pause = self._policy.pause(request, attempt, sent)
                if pause is None:
                    self._breaker.failed()
                    raise _unavailable(self._bases, error) from None
                if self._closed.wait(pause * random.uniform(0.75, 1.25)):
                    raise SessionClosed() from None
                attempt += 1
            except AckflowError:
                self._breaker.worked()
                raise
            else:
                self._breaker.worked()
                return answer

    def _once(self, request: Request) -> Any:
        server = self._servers[self._at % len(self._servers)]
        seconds = self._policy.read_seconds + request.wait
        answer = server.request(request.method, request.path, request.body, seconds)
        return result(request, *answer)

    def close(self) -> None:
        """Close every connection, also those on which another thread waits for an answer."""
        self._closed.set()
        for server in self._servers:
            server.close()


def _unavailable(bases: list[str], error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable(f"{' and '.join(bases)} cannot be reached: {error}")
