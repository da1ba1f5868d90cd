"""Ackflow's AMQP in a thread of this process, and as processes of their own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pika
import pytest
import uvloop
from pika.exceptions import AMQPError

import ackflow
from ackflow.dialects.rabbitmq.protocol import AmqpConnection
from ackflow.dialects.rabbitmq.server import AmqpServer
from ackflow.server.app import Server
from ackflow.server.limits import Limits
from ackflow.server.listener import Connections, Listener
from ackflow.server.routes import all_routes
from ackflow.server.run import listen

from ..server.conftest import Process

T = TypeVar("T")


class Amqp:
    """A session behind an AMQP server in a thread, until it is stopped."""

    def __init__(self, session: ackflow.Session, **options: Any) -> None:
        self.session = session
        sock = listen("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.call(self._start(sock, options))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _start(self, sock: Any, options: dict[str, Any]) -> None:
        self.app = Server(self.session, all_routes(), Limits(), **options)
        self.server = AmqpServer(self.app)
        self.connections = Connections(Limits())
        self._listener = Listener(
            sock, self.connections, lambda: AmqpConnection(self.server, self.connections)
        )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def _stop(self) -> None:
        self._listener.stop()
        self.app.close()
        await self.connections.close(5, asyncio.Event())
        await self.server.finished()
        await self.app.finished()
        self.app.loop_broker.close()
        self.app.auth.close()

    def stop(self) -> None:
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def connect(self, user: str = "guest", password: str = "guest", **more: Any) -> Any:
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.port,
                credentials=pika.PlainCredentials(user, password),
                **more,
            )
        )


@pytest.fixture
def amqp() -> Iterator[Amqp]:
    """An AMQP server on a database in memory."""
    with ackflow.connect(":memory:") as session:
        running = Amqp(session)
        yield running
        running.stop()


@pytest.fixture
def connect(amqp: Amqp) -> Iterator[Callable[..., Any]]:
    """Open pika connections, which are closed with the test."""
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        opened.append(amqp.connect(**options))
        return opened[-1]

    yield open_one
    for connection in opened:
        with contextlib.suppress(AMQPError):
            connection.close()


@pytest.fixture
def channel(connect: Callable[..., Any]) -> Any:
    return connect().channel()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `ackflow serve` on a file of the test's; it is stopped with the test."""
    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(tmp_path / "server.db", 0, *options))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
        assert process.process.stdout is not None
        process.process.stdout.close()
