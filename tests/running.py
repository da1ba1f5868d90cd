"""A server in a thread of the test's process, so that it can share the test's clock."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import uvloop

import ackflow
from ackflow.server.app import Server
from ackflow.server.connection import Connection
from ackflow.server.limits import Limits
from ackflow.server.listener import Connections, Listener
from ackflow.server.routes import all_routes
from ackflow.server.run import listen

T = TypeVar("T")


class Host:
    """One HTTP server in a thread of this process, for the applications of many tests in turn."""

    def __init__(self) -> None:
        self._sock = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.app: Server | None = None
        self.loop = uvloop.new_event_loop()
        self.connections = Connections(Limits())
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._listen())
        self.loop.call_soon(started.set)
        self.loop.run_forever()

    async def _listen(self) -> None:
        self._listener = Listener(self._sock, self.connections, self._connection)

    def _connection(self) -> Connection:
        assert self.app is not None, "no test is running"
        return Connection(self.app, self.connections)


_host: list[Host] = []


class Running:
    """A session behind the server, until it is stopped; one at a time."""

    def __init__(self, session: ackflow.Session, **options: Any) -> None:
        if not _host:
            _host.append(Host())
        self._host = _host[0]
        self.session = session
        self.url = self._host.url
        self.app = self.call(lambda: Server(session, all_routes(), **options))
        self.call(self._let_the_loop_commit)
        self._host.app = self.app

    def _let_the_loop_commit(self) -> None:
        self.app.loop_broker.leads = True  # as `serve` does

    @property
    def connections(self) -> Connections:
        return self._host.connections

    @contextlib.contextmanager
    def measured_turns(self) -> Iterator[list[float]]:
        """The CPU seconds of each turn of the event loop during the block.

        Unlike wall time they do not depend on what else the machine does.
        """
        turns: list[float] = []
        running = True
        before = 0.0

        def turn() -> None:
            nonlocal before
            now = time.thread_time()
            turns.append(now - before)
            before = now
            if running:
                self._host.loop.call_soon(turn)

        def begin() -> None:
            nonlocal before
            before = time.thread_time()
            self._host.loop.call_soon(turn)

        gc.disable()  # a collection looks at all objects of the tests
        try:
            self.call(begin)
            yield turns
        finally:
            running = False
            gc.enable()

    def stop(self) -> None:
        self.call(self.app.close)
        self.call(self.app.close_threads)

    def call(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._host.loop).result()
