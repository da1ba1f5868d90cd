"""A program of a user, against the public types: it has no errors under strict checking."""

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from ackflow import Message
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    Context,
    Counts,
    Extension,
    Handle,
    Middleware,
    ProcessorSession,
    Push,
    Reject,
    Status,
    Task,
    Worker,
)

worker = Worker("shop.db", redelivery_delay=timedelta(seconds=5), may_lose="acks")


@dataclass
class Order:
    id: int


@worker.processor("orders", group="billing", max_deliver=10)
def bill(message: Message, session: ProcessorSession, order: Order) -> Status:
    session.push("invoices", {"order": order.id}, delay=5)
    return ACK if message.deliveries < 3 else REJECT


@worker.processor("orders", group="stock")
class Stock:
    async def process(self, message: Message, session: ProcessorSession) -> Status:
        raise Reject("no such order")


@worker.task("mail", retries=5, backoff=[1, 5, 30], time_limit=60)
def send_mail(to: str, subject: str = "Hello", *, copies: int = 1) -> int:
    return copies


@worker.task("mail")
async def fetch(url: str) -> bytes:
    return url.encode()


@send_mail.on_last_attempt
def gave_up(context: Context, error: BaseException) -> None:
    context.session.push("alarms", str(error))


class Stamps(Middleware):
    def before_push(self, push: Push) -> None:
        push.headers["stamp"] = "1"


class Decides(Extension):
    def pre_received(self, context: Context) -> None:
        context.status = ACK


stamps = worker.add(Stamps())
assert_type(stamps, Stamps)
assert_type(send_mail.push("a@b.c", subject="Hi", copies=2), Handle[int])
assert_type(send_mail.push_with(delay=60, priority=1)("a@b.c"), Handle[int])
assert_type(send_mail.push("a").result(timeout=1), int)
assert_type(send_mail("a"), int)
assert_type(fetch.push("http://localhost").result(), bytes)
assert_type(fetch.push_with(delay=1)("http://localhost").result(), bytes)
assert_type(Stock(), Stock)
tasks: list[Task[[int], None]] = []


def main() -> Counts:
    with Harness(worker) as h:
        h.drain()
        h.assert_processed_status(ACK)
    with worker.batch():
        send_mail.push("a")
    return worker.run(concurrency=8, mode="weighted", queues={"orders": 3})
