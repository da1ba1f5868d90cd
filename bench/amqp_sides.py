"""One AMQP program in a process: `python -m bench.amqp_sides WHAT URL QUEUE COUNT`.

Prints the seconds it took, without connecting, and the seconds of CPU that this process used.
Publications are persistent and confirmed; a message has 200 bytes. The queue exists; a program that
consumes finds `COUNT` messages in it.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aio_pika
import pika
from pika.adapters.asyncio_connection import AsyncioConnection

BODY = b"x" * 200
WINDOW = PREFETCH = 100
CONNECTIONS = 16
Program = Callable[[str, str, int], float]


def _channel(url: str) -> Any:
    return pika.BlockingConnection(pika.URLParameters(url)).channel()


def declare(url: str, queue: str, kind: str) -> None:
    channel = _channel(url)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.connection.close()


def pika_one_by_one(url: str, queue: str, count: int) -> float:
    channel = _channel(url)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    start = time.perf_counter()
    for _ in range(count):
        channel.basic_publish("", queue, BODY, properties)
    return time.perf_counter() - start


def pika_consume(url: str, queue: str, count: int) -> float:
    channel = _channel(url)
    channel.basic_qos(prefetch_count=PREFETCH)
    start, left = time.perf_counter(), count
    for method, _, _ in channel.consume(queue):
        channel.basic_ack(method.delivery_tag)
        left -= 1
        if not left:
            break
    channel.queue_declare(queue, passive=True)  # what was acknowledged has arrived
    return time.perf_counter() - start


class Windows:
    """Publishes a window with pika, and the next one when all of it is confirmed."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        self._queue, self._left = queue, count
        self._last_tag = 0
        self._pending: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._channel: Any = None
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._connection = AsyncioConnection(
            pika.URLParameters(url),
            lambda connection: connection.channel(on_open_callback=self._opened),
            custom_ioloop=self._loop,
        )
        self._loop.run_forever()
        self.seconds = time.perf_counter() - self._started

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, lambda _: self._start())

    def _start(self) -> None:
        self._started = time.perf_counter()
        self._publish()

    def _publish(self) -> None:
        for _ in range(min(WINDOW, self._left)):
            self._left -= 1
            self._last_tag += 1
            self._pending.add(self._last_tag)
            self._channel.basic_publish("", self._queue, BODY, self._properties)

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._pending -= {one for one in self._pending if one <= tag}
        else:
            self._pending.discard(tag)
        if self._pending:
            return
        if self._left:
            self._publish()
        else:
            self._loop.stop()


def pika_windows(url: str, queue: str, count: int) -> float:
    return Windows(url, queue, count).seconds


def _message() -> aio_pika.Message:
    return aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


async def _windows(url: str, queue: str, count: int) -> float:
    async with await aio_pika.connect(url) as connection:
        exchange = (await connection.channel()).default_exchange
        start = time.perf_counter()
        for done in range(0, count, WINDOW):
            n = min(WINDOW, count - done)
            await asyncio.gather(*(exchange.publish(_message(), queue) for _ in range(n)))
        return time.perf_counter() - start


async def _connections(url: str, queue: str, count: int) -> float:
    opened = [await aio_pika.connect(url) for _ in range(CONNECTIONS)]
    exchanges = [(await connection.channel()).default_exchange for connection in opened]

    async def publish(exchange: Any) -> None:
        for _ in range(count // CONNECTIONS):
            await exchange.publish(_message(), queue)

    start = time.perf_counter()
    await asyncio.gather(*map(publish, exchanges))
    took = time.perf_counter() - start
    for connection in opened:
        await connection.close()
    return took


async def _consume(url: str, queue: str, count: int) -> float:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        left, over = count, asyncio.Event()

        async def handle(message: Any) -> None:
            nonlocal left
            await message.ack()
            left -= 1
            if not left:
                over.set()

        declared = await channel.get_queue(queue)
        start = time.perf_counter()
        await declared.consume(handle)
        await over.wait()
        await channel.get_queue(queue)
        return time.perf_counter() - start


def _asyncio(program: Callable[[str, str, int], Coroutine[Any, Any, float]]) -> Program:
    return lambda url, queue, count: asyncio.run(program(url, queue, count))


PROGRAMS: dict[str, Program] = {
    "pika, one by one": pika_one_by_one,
    "pika, windows of 100": pika_windows,
    "aio-pika, windows of 100": _asyncio(_windows),
    "aio-pika, 16 connections": _asyncio(_connections),
    "pika, consume and ack": pika_consume,
    "aio-pika, consume and ack": _asyncio(_consume),
}


if __name__ == "__main__":
    before = time.process_time()
    took = PROGRAMS[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
    print(took, time.process_time() - before)
