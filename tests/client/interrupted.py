"""A process with a consume loop, to be interrupted: python -m tests.client.interrupted FORM URL SECONDS."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time

import ackflow
from ackflow import aio

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")


class InterruptWhileLogging(logging.Handler):
    """Interrupts the process while it logs that it stops."""

    def emit(self, record: logging.LogRecord) -> None:
        if "stopping" in record.getMessage():
            os.kill(os.getpid(), signal.SIGINT)


def say(what: str) -> None:
    print(what, flush=True)


def plain(url: str, seconds: float, close: bool) -> None:
    def handle(message: ackflow.Message) -> None:
        say("begun")
        time.sleep(seconds)
        message.ack()
        say("finished")

    q = ackflow.connect(url)
    consumer = q.consume("orders", handle, group="g", batch=3, each=True)
    try:
        consumer.join()
    finally:
        say(f"counts {consumer.counts}")
        if close:
            q.close()


async def awaited(url: str, seconds: float) -> None:
    async def handle(message: aio.Message) -> None:
        say("begun")
        await asyncio.sleep(seconds)
        await message.ack()
        say("finished")

    async with await aio.connect(url) as q:
        consumer = q.consume("orders", handle, group="g", batch=3, each=True)
        try:
            await consumer
        finally:
            say(f"counts {consumer.counts}")


def forgotten(url: str, seconds: float) -> None:
    """The main thread ends while a handler is at work, without a join or a close."""
    begun = threading.Event()

    def handle(message: ackflow.Message) -> None:
        say("begun")
        begun.set()
        time.sleep(seconds)
        message.ack()
        say("finished")

    ackflow.connect(url).consume("orders", handle, group="g", batch=3, each=True)
    begun.wait()


if __name__ == "__main__":
    form, url, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if form == "asyncio":
        asyncio.run(awaited(url, seconds))
    elif form == "forgotten":
        forgotten(url, seconds)
    else:
        if form == "logging":
            logging.getLogger("ackflow").addHandler(InterruptWhileLogging())
        plain(url, seconds, form in ("closed", "logging"))
