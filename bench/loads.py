"""Loads with prebuilt requests, so that the server is measured and not a client library."""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ackflow.broker.core.admin import admin
from ackflow.broker.requests import Mark, PopRequest, Verdict
from ackflow.remote import protocol, wire
from ackflow.remote.wire import MSGPACK
from ackflow.session import encoding

from .measure import Json
from .peers import HOST

QUEUE = "bench"


def request(path: str, body: bytes, type: str = MSGPACK) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: {type}\r\naccept: {type}\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def push_body(messages: Sequence[Json]) -> bytes:
    made, _ = encoding.request(
        QUEUE, messages, partition="Default", priority=0, delay=None, key=None
    )  # fmt: skip
    return wire.write(made, MSGPACK)


def pop_body(batch: int) -> bytes:
    return wire.write(PopRequest(QUEUE, "g", "bench", batch=batch), MSGPACK)


class Connection:
    """One keep-alive connection on a blocking socket."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection((HOST, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self._sock.makefile("rb")

    def ask(self, whole: bytes) -> bytes:
        self._sock.sendall(whole)
        status, size = self._read.readline(), 0
        while (line := self._read.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                size = int(line[15:])
        body = self._read.read(size)
        if b" 20" not in status:
            raise RuntimeError(f"{status!r} {body!r}")
        return body

    def close(self) -> None:
        self._read.close()
        self._sock.close()


_popped = msgspec.msgpack.Decoder(wire.PackedHandout).decode
_ACK = [Mark(Verdict("ack"))]


class OverHttp:
    """Ackflow's server with prebuilt requests."""

    def __init__(self, port: int, messages: Sequence[Json], batch: int) -> None:
        self._connection = Connection(port)
        self._pushes = [
            request("/v1/push", push_body(messages[at : at + batch]))
            for at in range(0, len(messages), batch)
        ]
        self._pop = request("/v1/pop", pop_body(batch))
        made = protocol.verb(admin.configure, True, (QUEUE, {"keep_seconds": 0}))
        self._connection.ask(request(made.path, made.body))

    def push(self) -> None:
        for whole in self._pushes:
            self._connection.ask(whole)

    def drain(self) -> None:
        for _ in self._pushes:
            popped = _popped(self._connection.ask(self._pop))
            assert popped.runs, "a batch is missing"
            body = wire.write([False, [popped.token, _ACK]], MSGPACK)
            self._connection.ask(request("/v1/verbs/settle", body))

    def close(self) -> None:
        self._connection.close()


class OverRedis:
    """Redis Streams with prebuilt requests; redis-py's parser reads the replies."""

    def __init__(self, port: int, messages: Sequence[Json], batch: int) -> None:
        import redis

        self._redis = redis.Redis(HOST, port)
        self._redis.delete(QUEUE)
        self._redis.xgroup_create(QUEUE, "g", id="0", mkstream=True)
        self._batch = batch
        self._connection: Any = self._redis.connection_pool.get_connection()
        encode = msgspec.json.encode
        self._pushes = []
        for at in range(0, len(messages), batch):
            some = [
                b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%s\r\n"
                % (len(QUEUE), QUEUE.encode(), len(body), body)
                for body in map(encode, messages[at : at + batch])
            ]
            self._pushes.append((b"".join(some), len(some)))

    def push(self) -> None:
        for whole, count in self._pushes:
            self._connection.send_packed_command([whole])
            for _ in range(count):
                self._connection.read_response()

    def drain(self) -> None:
        for _ in self._pushes:
            ((_, items),) = self._redis.xreadgroup("g", "c", {QUEUE: ">"}, count=self._batch)
            self._redis.xack(QUEUE, "g", *(id for id, _ in items))

    def close(self) -> None:
        self._redis.close()


async def _client(port: int, whole: bytes, until: float, answers: list[int]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    while time.perf_counter() < until:
        writer.write(whole)
        await _answered(reader)
        answers[0] += 1
    writer.close()


async def _answered(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head[:16], head
    at = head.lower().index(b"content-length:") + 15
    await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))


def together(port: int, whole: bytes, clients: int, seconds: float) -> float:
    """Measure responses per second with clients that repeat the same request."""

    async def load() -> float:
        answers = [0]
        start = time.perf_counter()
        until = start + seconds
        await asyncio.gather(*(_client(port, whole, until, answers) for _ in range(clients)))
        return answers[0] / (time.perf_counter() - start)

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load())


def side_by_side(port: int, lists: Sequence[Sequence[bytes]]) -> float:
    """Measure the seconds that concurrent clients need, each sending its requests in sequence."""

    async def load() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(_in_turn(port, some) for some in lists))
        return time.perf_counter() - start

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load())


async def _in_turn(port: int, some: Sequence[bytes]) -> None:
    read, write = await asyncio.open_connection(HOST, port)
    for whole in some:
        write.write(whole)
        await _answered(read)
    write.close()
