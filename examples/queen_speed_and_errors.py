"""Fast acknowledgements in the style of Queen, and the handling of failed ones.

python examples/queen_speed_and_errors.py
"""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import ackflow
from ackflow import LeaseLost, Message, RetryPolicy, Session, Settled
from ackflow.session.consumer import Consumer

Process = Callable[[Any], object]


def buffered_acks(q: Session, process: Process) -> Consumer:
    """Use batch ACK for high throughput"""
    acks = q.buffer(size=100)  # sent every 100 acks, after a second, and when the session closes

    def handle(messages: list[Message]) -> None:
        for message in messages:
            process(message.data)
            acks.ack(message)

    return q.queue("events").batch(100).consume(handle)


def with_lease(message: Message) -> None:
    """Include lease ID to skip validation query"""
    message.ack()  # every ack of a message includes its lease


def without_acks(q: Session, process: Process) -> Consumer:
    """Use auto-ACK for non-critical messages"""
    return q.queue("logs").auto_ack(True).consume(lambda message: process(message.data))


def invalid_lease(message: Message) -> bool:
    """Invalid Lease"""
    try:
        message.ack()
    except LeaseLost as lost:  # code invalid_lease, or a more specific one
        print(f"do not retry, the message is redelivered: {lost}")
        return False
    return True


def missing_partition(q: Session, message: Message) -> Settled:
    """Missing partitionId"""
    assert message.token is not None
    # The message id contains the partition; a transaction id alone is refused.
    return q.lease(message.token).ack(message.id)


def not_found(message: Message) -> None:
    """Message Not Found"""
    message.ack()
    message.ack()  # repeating an ack is not an error


def patient_session(url: str) -> Session:
    """Exponential Backoff"""
    # Sessions on a server retry by themselves; these are the defaults. Only idempotent calls are
    # repeated, which includes every settle.
    return ackflow.connect(url, retry=RetryPolicy(pauses=(1, 2, 4)))


def guarded_session(url: str) -> Session:
    """Circuit Breaker"""
    # After 5 failed calls in a row, calls raise CircuitOpen for a minute. This is the default, too.
    return ackflow.connect(url, retry=RetryPolicy(failures=5, open_seconds=60))


def main(folder: str) -> None:
    with guarded_session(f"{folder}/queen.db") as guarded:
        guarded.push("events", list(range(250)))
        guarded.push("logs", ["started", "stopped"])
    with patient_session(f"{folder}/queen.db") as q:
        seen: list[Any] = []
        for example, n in ((buffered_acks, 250), (without_acks, 252)):
            with example(q, seen.append) as consumer:
                while len(seen) < n:
                    consumer.join(0.01)
        q.push("orders", [1, 2, 3, 4])
        first, second, third, fourth = q.pop("orders", batch=4)
        with_lease(first)
        print(missing_partition(q, second))
        not_found(third)
        q.delete_message("orders", fourth.id)
        invalid_lease(fourth)
        print(f"{len(seen)} processed and acked")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
