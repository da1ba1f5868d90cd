"""The client of a scenario, which writes a trace of what it sees."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pika
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

Trace = list[Any]
SCENARIOS: dict[str, Callable[["Client"], None]] = {}


def scenario(run: Callable[["Client"], None]) -> Callable[["Client"], None]:
    SCENARIOS[run.__name__] = run
    return run


class Client:
    """A client of one scenario: connections, short verbs, and the trace."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._name = name
        self.trace: Trace = []
        self._connections: list[Any] = []
        self.connection = self.connect()
        self.ch = self.connection.channel()

    def connect(self) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0)
        self._connections.append(pika.BlockingConnection(parameters))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(AMQPError):
                connection.close()

    def name(self, short: str) -> str:
        return f"{self._name}.{short}"

    def log(self, *seen: Any) -> None:
        self.trace.append(list(seen))

    def declare(self, short: str = "q", channel: Any = None, **options: Any) -> str:
        options = {"durable": True, **options}
        return str((channel or self.ch).queue_declare(self.name(short), **options).method.queue)

    def publish(self, *bodies: str, to: str = "q", exchange: str = "", **properties: Any) -> None:
        key = self.name(to) if exchange == "" else to
        exchange = exchange and self.name(exchange)
        for body in bodies:
            self.ch.basic_publish(exchange, key, body.encode(), pika.BasicProperties(**properties))

    def get(self, short: str = "q", channel: Any = None, **options: Any) -> Any:
        """Fetch a message and log it; returns its delivery tag."""
        method, _, body = (channel or self.ch).basic_get(self.name(short), **options)
        if method is None:
            self.log("empty")
            return None
        self.log(body.decode(), "again" if method.redelivered else "first")
        return method.delivery_tag

    def wait_get(self, short: str = "q") -> tuple[Any, Any, bytes]:
        """Fetch a message that arrives soon."""
        deadline = time.monotonic() + 20
        while True:
            method, properties, body = self.ch.basic_get(self.name(short), auto_ack=True)
            if method is not None or time.monotonic() > deadline:
                return method, properties, body
            time.sleep(0.02)

    def drain(self, short: str = "q", channel: Any = None) -> None:
        """Log the bodies of everything that is ready."""
        found = []
        channel = channel or self.ch
        while (got := channel.basic_get(self.name(short), auto_ack=True))[0] is not None:
            found.append(got[2].decode() + (" again" if got[0].redelivered else ""))
        self.log("drained", found)

    def count(self, short: str = "q", expected: int | None = None) -> None:
        """Log the number of ready messages, once it is as expected or does not become so."""
        deadline = time.monotonic() + 5
        while True:
            method = self.ch.queue_declare(self.name(short), passive=True).method
            if expected in (None, method.message_count) or time.monotonic() > deadline:
                return self.log("count", method.message_count)
            time.sleep(0.02)

    def fails(self, act: Callable[[Any], Any], channel: Any = None) -> None:
        """Log the error of an act on a channel, which is opened for it if none is given."""
        try:
            channel = channel or self.connection.channel()
            act(channel)
            self.log("no error")
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            kind = "channel" if isinstance(error, ChannelClosedByBroker) else "connection"
            self.log(kind, error.reply_code, error.reply_text)
        except (NackError, UnroutableError) as error:
            self.log(type(error).__name__)

    def consume(
        self, short: str = "q", n: int = 1, channel: Any = None, **options: Any
    ) -> list[int]:
        """Consume until n messages came, log them, cancel; returns the delivery tags."""
        channel = channel or self.ch
        seen: list[tuple[str, bool, int]] = []

        def got(_: Any, method: Any, __: Any, body: bytes) -> None:
            seen.append((body.decode(), method.redelivered, method.delivery_tag))

        tag = channel.basic_consume(self.name(short), got, **options)
        self.pump(lambda: len(seen) >= n, channel.connection)
        channel.connection.process_data_events(0.05)
        self.log("consumed", [body + (" again" if again else "") for body, again, _ in seen])
        channel.basic_cancel(tag)
        return [number for _, _, number in seen]

    def pump(self, until: Callable[[], bool], *connections: Any) -> None:
        deadline = time.monotonic() + 20
        while not until() and time.monotonic() < deadline:
            for connection in connections:
                connection.process_data_events(0.01)


def run(port: int, name: str) -> Trace:
    """Run one scenario; returns its trace."""
    client = Client(port, name)
    try:
        SCENARIOS[name](client)
    finally:
        client.close()
    return client.trace
