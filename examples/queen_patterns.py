"""Patterns of Queen: transactional forwarding, conditional acks, delayed retries, metrics.

python examples/queen_patterns.py
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ackflow
from ackflow import Message, Session
from ackflow.session.ack_stats import AckStats
from ackflow.session.consumer import Consumer
from ackflow.session.transaction import Committed


@dataclass
class Result:
    """The result of a task."""

    success: bool
    retryable: bool = False
    error: str | None = None


class RateLimited(Exception):
    """The API asks for a pause."""


def ack_and_push(q: Session, message: Message) -> Committed:
    """Transactional ACK + PUSH"""
    return (
        q.transaction()
        .ack(message)
        .queue("next-step")
        .partition("workflow-1")
        .push([{"processed": True}])
        .commit()
    )


def conditional_ack(q: Session, process: Callable[[Any], Result]) -> Consumer:
    """Conditional ACK"""

    def handle(message: Message) -> None:
        result = process(message.data)
        if result.success:
            message.ack()
        elif result.retryable:
            message.nack(result.error)
        else:
            message.reject(result.error)  # to the dead letters, without a retry

    return q.queue("tasks").consume(handle)


def delayed_nack(q: Session, call_api: Callable[[Any], object]) -> Consumer:
    """Delayed NACK (Manual Retry)"""

    def handle(message: Message) -> None:
        try:
            call_api(message.data)
        except RateLimited:
            message.requeue(
                delay=60
            )  # in a minute, at the end of the partition, not counted as failure
        except Exception as error:
            message.nack(str(error))
        else:
            message.ack()

    return q.queue("rate-limited").consume(handle)


def ack_metrics(q: Session) -> AckStats:
    """ACK Metrics"""
    return q.ack_stats()  # counts and times every settle of the session


def main(folder: str) -> None:
    with ackflow.connect(f"{folder}/queen.db") as q:
        q.push("orders", 1)
        ack_and_push(q, q.pop("orders")[0])
        print(q.pop("next-step")[0].data)
        q.push("tasks", [True, False])
        with conditional_ack(q, lambda data: Result(data, error="not a task")) as consumer:
            while consumer.counts.succeeded < 2:
                consumer.join(0.01)
        print(q.dead_letters("tasks").items[0].reason)
        q.push("rate-limited", {"call": 1})
        with delayed_nack(q, refuse) as consumer:
            while not consumer.counts.succeeded:
                consumer.join(0.01)
        print(ack_metrics(q))


def refuse(_: Any) -> None:
    raise RateLimited


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
