"""Listening sockets and the open connections: accepts within limits, and ends slow clients."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from .limits import Limits

ACCEPTS = 64  # connections accepted before the loop does other work
PAUSE_SECONDS = 0.5  # without accepting, when the process is out of descriptors
SWEEP_SECONDS = 1.0
IDLE_AT_CLOSE_SECONDS = 0.2  # for requests that were sent before the client saw the end
LINGER_SECONDS = 2.0
HANDSHAKE_SECONDS = 30.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("ackflow.server")


class OpenConnection(Protocol):
    """What the registry asks of a connection, whatever protocol it speaks."""

    @property
    def idle(self) -> bool: ...
    def close_if_idle(self) -> None: ...
    def abort(self) -> None: ...
    def waits_for_client(self) -> tuple[Hashable, bool] | None: ...
    def write_overdue(self, now: float) -> bool: ...
    def end_wait(self, seconds: float) -> None: ...


class Connections:
    """The open connections of all listeners."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: set[OpenConnection] = set()
        self._waits: dict[OpenConnection, tuple[Hashable, float]] = {}
        self.pending = 0  # accepted, and not through with the TLS handshake
        self.on_room: list[Callable[[], None]] = []

    @property
    def full(self) -> bool:
        return len(self._open) + self.pending >= self._limits.connections

    def __len__(self) -> int:
        return len(self._open)

    @property
    def busy(self) -> int:
        """The number of connections with an unanswered request."""
        return sum(not connection.idle for connection in self._open)

    def add(self, connection: OpenConnection) -> None:
        self._open.add(connection)

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)
        self._waits.pop(connection, None)
        for resume in self.on_room:
            resume()

    async def sweep(self) -> None:
        """End the connections of slow clients, for ever.

        It looks at all connections from time to time, so that a usual request costs nothing.
        """
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._limits.read_seconds / 4))
            self.end_slow(time.monotonic())

    def end_slow(self, now: float) -> None:
        before, self._waits = self._waits, {}
        for connection in list(self._open):
            found = connection.waits_for_client()
            if found is None:
                continue
            wait, keep_alive = found
            earlier, since = before.get(connection, (None, now))
            if earlier != wait:
                since = now
            if now - since >= self._seconds(wait, keep_alive) or connection.write_overdue(now):
                connection.end_wait(self._limits.read_seconds)
            self._waits[connection] = wait, since

    def _seconds(self, wait: Hashable, keep_alive: bool) -> float:
        if keep_alive:
            return self._limits.keep_alive_seconds
        if isinstance(wait, tuple) and wait[0] == "close":
            return min(LINGER_SECONDS, self._limits.read_seconds)
        return self._limits.read_seconds

    async def close(self, seconds: float, forced: asyncio.Event) -> None:
        """Close idle connections, and wait for the responses of the others."""
        until = time.monotonic() + seconds
        idle_until = time.monotonic() + IDLE_AT_CLOSE_SECONDS
        while self._open and time.monotonic() < until and not forced.is_set():
            if time.monotonic() >= idle_until:
                for connection in list(self._open):
                    connection.close_if_idle()
            await asyncio.sleep(0.02)
        for connection in list(self._open):
            connection.abort()


class Listener:
    """Accepts connections of one socket, while there is room for them."""

    def __init__(
        self,
        sock: socket.socket,
        connections: Connections,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sock = sock
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._accepting = False
        self._stopped = False
        self._exhausted = False  # the process had no descriptor left; it tries again soon
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        connections.on_room.append(self._resume)
        self._resume()

    def stop(self) -> None:
        """Stop accepting, and close the socket."""
        self._pause()
        self._stopped = True
        self._connections.on_room.remove(self._resume)
        self._sock.close()

    def _resume(self) -> None:
        if not (self._accepting or self._stopped or self._exhausted or self._connections.full):
            self._accepting = True
            self._loop.add_reader(self._sock, self._accept)

    def _try_again(self) -> None:
        self._exhausted = False
        self._resume()

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._sock)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._connections.full:
                return self._pause()
            try:
                client, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # this client has gone already
                log.warning("cannot accept connections for now: %s", error.strerror)
                self._pause()
                self._exhausted = True
                self._loop.call_later(PAUSE_SECONDS, self._try_again)
                return
            client.setblocking(False)
            self._connections.pending += 1
            task = self._loop.create_task(self._connect(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: socket.socket) -> None:
        handshake = HANDSHAKE_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, client, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except Exception as error:  # no TLS, a wrong version, or the client has gone
            log.debug("a connection could not be established: %s", error)
            with contextlib.suppress(OSError):
                client.close()
        finally:
            self._connections.pending -= 1
            self._resume()
