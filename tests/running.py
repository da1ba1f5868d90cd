"""A server in a thread of the test's process, so that it can share the test's clock."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import uvicorn

import ackflow
from ackflow.server.app import Server
from ackflow.server.http import Receive, Scope, Send
from ackflow.server.routes import all_routes
from ackflow.server.run import listen

T = TypeVar("T")


class Host:
    """One HTTP server in a thread of this process, for the applications of many tests in turn."""

    def __init__(self) -> None:
        self._sock = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.app: Server | None = None
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        config = uvicorn.Config(
            self._serve, interface="asgi3", lifespan="off", log_config=None, access_log=False
        )
        config.load()
        self.loop.call_soon(started.set)
        self.server = uvicorn.Server(config)
        self.loop.run_until_complete(self.server._serve([self._sock]))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None, "no test is running"
        await self.app(scope, receive, send)


_host: list[Host] = []


class Running:
    """A session behind the server, until it is stopped; one at a time."""

    def __init__(self, session: ackflow.Session, **options: Any) -> None:
        if not _host:
            _host.append(Host())
        self._host = _host[0]
        self.session = session
        self.url = self._host.url
        self.app = self._call(lambda: Server(session, all_routes(), **options))
        self._host.app = self.app

    @property
    def server(self) -> uvicorn.Server:
        return self._host.server

    def stop(self) -> None:
        self._call(self.app.close)
        self._call(lambda: self.app.onloop.close())

    def _call(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._host.loop).result()
