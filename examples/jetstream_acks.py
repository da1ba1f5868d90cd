"""Acknowledge messages in the style of JetStream, and read their metadata.

python examples/jetstream_acks.py
"""

import sys
import tempfile
from typing import Any

import ackflow
from ackflow import AckflowError, Message
from ackflow.jetstream import consumer


def ack(message: Message) -> None:
    """Ack - Success"""
    message.ack()


def double_ack(message: Message) -> bool:
    """DoubleAck - Confirmed Success"""
    try:
        message.ack(confirm=True)  # returns when the ack is on disk
    except AckflowError:
        return False  # the ack is not confirmed, and the message may be redelivered
    return True


def nak(message: Message, later: Message) -> None:
    """Nak - Retry Now"""
    message.nack()  # redelivered at once, or after the back-off of the consumer
    later.nack(delay=5)


def in_progress(message: Message) -> None:
    """InProgress - Extend Deadline"""
    message.in_progress()


def term(message: Message, unreadable: Message) -> None:
    """Term - Terminate"""
    message.term()
    unreadable.term("invalid message format")  # the reason is kept with the dead letter


def metadata(message: Message) -> dict[str, Any]:
    """Message Metadata"""
    metadata = message.metadata
    return {
        "stream sequence": metadata.sequence.stream,  # its position in the partition, from 0
        "consumer sequence": metadata.sequence.consumer,  # the number of this delivery, from 1
        "deliveries": metadata.num_delivered,
        "pending": metadata.num_pending,
        "published": metadata.timestamp,
    }


def main(folder: str) -> None:
    with ackflow.connect(f"{folder}/orders.db") as q:
        q.push("orders", [{"id": n} for n in range(7)])
        first, second, third, fourth, fifth, sixth, seventh = consumer(q, "orders", "w").fetch(7)
        print(metadata(first))
        ack(first)
        print("confirmed" if double_ack(second) else "not confirmed")
        nak(third, fourth)
        term(fifth, sixth)
        in_progress(seventh)
        counts = q.group_stats("orders", "w").counts
        print(f"{counts.done} done, {counts.ready} ready for redelivery, {counts.waiting} delayed,")
        print(f"{counts.dead} dead letters, {counts.leased} in progress")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
