"""Requests over urllib3, from any thread."""

import contextlib
import random
import socket
import threading
from typing import Any
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError

from ..errors import AckflowError, SessionClosed, Unavailable
from .protocol import HEADERS, Request, result
from .retry import Breaker, RetryPolicy


class ThreadTransport:
    """Sends requests to the first server that answers; a request that is safe to repeat is retried."""

    def __init__(
        self, bases: list[str], headers: dict[str, str], policy: RetryPolicy, **tls: Any
    ) -> None:
        self._bases = bases
        self._at = 0
        self._headers = {**HEADERS, **headers}
        self._policy = policy
        self._breaker = Breaker(policy)
        self._open: WeakSet[HTTPConnection] = WeakSet()
        self._closed = threading.Event()
        self._pool = urllib3.PoolManager(maxsize=64, retries=False, **tls)
        self._pool.pool_classes_by_scheme = _watched(self._open)

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
                sent = not isinstance(error, NewConnectionError)
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
        base = self._bases[self._at % len(self._bases)]
        timeout = urllib3.Timeout(
            connect=self._policy.connect_seconds, read=self._policy.read_seconds + request.wait
        )
        answer = self._pool.request(
            request.method, base + request.path, body=request.body, headers=self._headers,
            timeout=timeout,
        )  # fmt: skip
        return result(request, answer.status, answer.headers, answer.data)

    def close(self) -> None:
        """Close every connection, also those on which another thread waits for an answer."""
        self._closed.set()
        for connection in list(self._open):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self._pool.clear()


def _watched(open: "WeakSet[HTTPConnection]") -> dict[str, Any]:
    """Connection pools that record their connections, so that `close` can shut them down."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            open.add(self)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            open.add(self)

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": Pool, "https": SecurePool}


def _unavailable(bases: list[str], error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    cause = error.__cause__ or error.__context__
    why = cause.strerror if isinstance(cause, OSError) and cause.strerror else error
    return Unavailable(f"{' and '.join(bases)} cannot be reached: {why}")
