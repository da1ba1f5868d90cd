"""Acknowledge messages in the style of Queen, with asyncio.

python examples/queen_async.py
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from ackflow import Settled, Verdict, aio
from ackflow.aio import Consumer, Message, Session
from ackflow.session.transaction import Committed

Process = Callable[[Any], Awaitable[object]]


def manual_ack(q: Session, process: Process) -> Consumer:
    """Manual ACK (Default)"""

    async def handle(message: Message) -> None:
        try:
            await process(message.data)
        except Exception as error:
            await message.nack(str(error))
        else:
            await message.ack()

    return q.queue("orders").group("processors").auto_ack(False).consume(handle)


def auto_ack(q: Session, process: Process) -> Consumer:
    """Auto-ACK"""
    chain = q.queue("events").group("processors").auto_ack(True)
    return chain.consume(lambda message: process(message.data))


def callbacks(q: Session, process: Process) -> Consumer:
    """Callback-based ACK"""
    return (
        q.queue("tasks")
        .group("workers")
        .each()
        .on_success(lambda message: message.ack())
        .on_error(lambda message, error: message.nack(str(error)))
        .consume(lambda message: process(message.data))
    )


async def batch_ack(q: Session, first: Message, second: Message, third: Message) -> Settled:
    """Batch ACK"""
    return await q.settle(
        [(first, "ack"), (second, "ack"), (third, Verdict("nack", "Validation error"))],
        atomic=True,
    )


def lease_renewal(q: Session, process: Process) -> Consumer:
    """Lease Renewal"""

    async def handle(message: Message) -> None:
        await process(message.data)  # the lease is renewed even if this blocks the event loop
        await message.ack()

    return q.queue("long-tasks").group("workers").renew_lease(True, 2).consume(handle)


def buffered_acks(q: Session, process: Process) -> Consumer:
    """Use batch ACK for high throughput"""
    acks = q.buffer(size=100)

    async def handle(messages: list[Message]) -> None:
        for message in messages:
            await process(message.data)
            await acks.ack(message)

    return q.queue("events").batch(100).consume(handle)


async def ack_and_push(q: Session, message: Message) -> Committed:
    """Transactional ACK + PUSH"""
    step = q.transaction().ack(message).queue("next-step").partition("workflow-1")
    return await step.push([{"processed": True}]).commit()


async def run(folder: str) -> None:
    async def process(data: Any) -> None:
        print("processed", data)

    async with await aio.connect(f"{folder}/queen.db") as q:
        for queue in ("orders", "tasks", "long-tasks"):
            await q.push(queue, {"from": queue})
        for example in (manual_ack, callbacks, lease_renewal, buffered_acks, auto_ack):
            await q.push("events", {"for": example.__doc__})
            async with example(q, process) as consumer:
                while not consumer.counts.succeeded:
                    await asyncio.sleep(0.01)
        await q.push("orders", [1, 2, 3, 4])
        first, *others = await q.pop("orders", group="processors", batch=4)
        await ack_and_push(q, first)
        print(await batch_ack(q, *others))


def main(folder: str) -> None:
    asyncio.run(run(folder))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
