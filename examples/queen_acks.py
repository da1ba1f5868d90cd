"""Acknowledge messages in the style of Queen: manually, automatically, with callbacks, in batches.

python examples/queen_acks.py
"""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import ackflow
from ackflow import Message, Session, Settled, Verdict
from ackflow.session.consumer import Consumer

Process = Callable[[Any], object]


def manual_ack(q: Session, process: Process) -> Consumer:
    """Manual ACK (Default)"""

    def handle(message: Message) -> None:
        try:
            process(message.data)
        except Exception as error:
            message.nack(str(error))
        else:
            message.ack()

    return q.queue("orders").group("processors").auto_ack(False).consume(handle)


def auto_ack(q: Session, process: Process) -> Consumer:
    """Auto-ACK"""

    def handle(message: Message) -> None:
        process(message.data)  # the message is already acked; an error here loses it

    return q.queue("events").group("processors").auto_ack(True).consume(handle)


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


def required_parameters(q: Session, message_id: str, lease_id: str) -> Settled:
    """Required Parameters"""
    # A message id contains its partition, and a lease belongs to one group, so that these two are
    # unambiguous even if a transaction id is used in two partitions.
    return q.lease(lease_id).ack(message_id)


def batch_ack(q: Session, first: Message, second: Message, third: Message) -> Settled:
    """Batch ACK"""
    return q.settle(
        [(first, "ack"), (second, "ack"), (third, Verdict("nack", "Validation error"))],
        atomic=True,  # all or none; otherwise each is settled independently
    )


def lease_renewal(q: Session, process: Process) -> Consumer:
    """Lease Renewal"""

    def handle(message: Message) -> None:
        process(message.data)  # may outlast the lease, which is renewed every 2 s
        message.ack()

    return q.queue("long-tasks").group("workers").renew_lease(True, 2).consume(handle)


def queue_mode(q: Session, process: Process) -> Consumer:
    """Queue Mode (Default)"""

    def handle(message: Message) -> None:
        process(message.data)
        message.ack()

    return q.queue("tasks").consume(handle)  # no group: all consumers share the messages


def named_groups(
    q: Session, send_email: Process, update_analytics: Process
) -> tuple[Consumer, Consumer]:
    """Named Consumer Groups"""

    def consume(group: str, process: Process) -> Consumer:
        def handle(message: Message) -> None:
            process(message.data)
            message.ack()

        return q.queue("user-events").group(group).consume(handle)

    return consume("email-sender", send_email), consume("analytics", update_analytics)


def main(folder: str) -> None:
    with ackflow.connect(f"{folder}/queen.db") as q:
        for queue in ("orders", "events", "tasks", "long-tasks", "user-events"):
            q.push(queue, {"from": queue})
        for example in (manual_ack, auto_ack, queue_mode, callbacks, lease_renewal):
            print(example.__doc__)
            with example(q, print) as consumer:
                wait_for(consumer)
        for consumer in named_groups(q, print, print):
            with consumer:
                wait_for(consumer)
        q.push("orders", [1, 2, 3, 4])
        first, *others = q.pop("orders", group="processors", batch=4)
        assert first.token is not None
        print(required_parameters(q, first.id, first.token))
        print(batch_ack(q, *others))


def wait_for(consumer: Consumer) -> None:
    while not consumer.counts.succeeded:
        consumer.join(0.01)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
