"""The server is killed while clients push and consume; the clients only log it."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import ackflow
from ackflow import Message, Session, aio
from ackflow.errors import AckflowError
from ackflow.remote.retry import RetryPolicy

from ..server.conftest import Process
from .waiting import until

THREADS = 8
PATIENT = RetryPolicy(
    pauses=(0.2, *[1.0] * 60)
)  # on a busy machine a server takes long to come back
Start = Callable[..., Process]


class Ledger:
    """What the clients recorded: confirmed pushes and acks, handled messages, errors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pushed: set[str] = set()
        self.acked: set[str] = set()
        self.again: set[str] = set()
        self.raised: list[BaseException] = []

    def push(self, id: str) -> None:
        with self._lock:
            self.pushed.add(id)

    def handle(self, id: str) -> None:
        with self._lock:
            if id in self.acked:
                self.again.add(id)

    def ack(self, id: str) -> None:
        with self._lock:
            self.acked.add(id)

    def check(self) -> None:
        assert self.raised == []
        assert self.again == set(), "a handler was run for an acked message"
        assert self.pushed <= self.acked, "a push that returned was not delivered"
        assert len(self.pushed) >= 300


def pushing(q: Session, ledger: Ledger, name: str, stop: threading.Event) -> None:
    n = 0
    while not stop.is_set():
        ids = [f"{name}-{n + i}" for i in range(5)]
        try:
            q.push("orders", ids)
        except AckflowError:
            time.sleep(0.05)
            continue  # it was not answered, so nothing was promised
        finally:
            n += 5
        for id in ids:
            ledger.push(id)
        time.sleep(0.005)


def kill_twice(server: Process, ledger: Ledger) -> None:
    """Kill it while pushes are answered, and leave when they are answered again."""
    for _ in range(2):
        pushes_go_on(ledger)
        server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.start()
    pushes_go_on(ledger)


def pushes_go_on(ledger: Ledger) -> None:
    wanted = len(ledger.pushed) + 100
    until(lambda: len(ledger.pushed) >= wanted, 60.0)


def drained(q: Session, ledger: Ledger) -> None:
    deadline = time.monotonic() + 20
    while not ledger.pushed <= ledger.acked and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_server_killed_twice_loses_nothing_for_eight_threads(start_process: Start) -> None:
    server, ledger, stop = start_process(), Ledger(), threading.Event()

    def handle(message: Message) -> None:
        id = message.data
        ledger.handle(id)
        try:
            message.ack()
        except BaseException as error:
            ledger.raised.append(error)
            raise
        ledger.ack(id)

    with ackflow.connect(server.url, retry=PATIENT) as q:
        q.push("orders", "first")
        consumer = q.consume("orders", handle, group="g", batch=20, each=True, concurrency=4)
        pushers = [
            threading.Thread(target=pushing, args=(q, ledger, f"p{n}", stop))
            for n in range(THREADS - 4)
        ]
        for thread in pushers:
            thread.start()
        try:
            kill_twice(server, ledger)
        finally:
            stop.set()
        for thread in pushers:
            thread.join()
        drained(q, ledger)
        consumer.close()
        assert q.group_stats("orders", "g").counts.lag == 0
    ledger.check()


def test_a_server_killed_twice_loses_nothing_for_tasks(start_process: Start) -> None:
    server, ledger, stop = start_process(), Ledger(), threading.Event()

    async def push(q: aio.Session, name: str) -> None:
        n = 0
        while not stop.is_set():
            id, n = f"{name}-{n}", n + 1
            try:
                await q.push("orders", id)
            except AckflowError:
                await asyncio.sleep(0.05)
                continue
            ledger.push(id)
            await asyncio.sleep(0.005)

    async def handle(messages: list[Any]) -> None:
        for message in messages:
            ledger.handle(message.data)
        try:
            await asyncio.gather(*(message.ack() for message in messages))
        except BaseException as error:
            ledger.raised.append(error)
            raise
        for message in messages:
            ledger.ack(message.data)

    async def main() -> None:
        async with await aio.connect(server.url, retry=PATIENT) as q:
            consumer = q.consume("orders", handle, group="g", batch=20, concurrency=4)
            pushers = [asyncio.ensure_future(push(q, f"p{n}")) for n in range(4)]
            try:
                await asyncio.to_thread(kill_twice, server, ledger)
            finally:
                stop.set()
            await asyncio.gather(*pushers)
            await asyncio.to_thread(drained, q.sync, ledger)
            await consumer.close()

    asyncio.run(main())
    ledger.check()
