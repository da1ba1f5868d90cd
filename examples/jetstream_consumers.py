"""Configure consumers in the style of JetStream.

python examples/jetstream_consumers.py
"""

import sys
import tempfile

import ackflow
from ackflow import Session
from ackflow.jetstream import Consumer, ConsumerConfig, consumer


def ack_explicit(q: Session) -> Consumer:
    """AckExplicit (Default)"""
    return consumer(q, "orders", "explicit", ConsumerConfig(ack_policy="explicit"))


def ack_all(q: Session) -> Consumer:
    """AckAll"""
    return consumer(q, "orders", "all", ConsumerConfig(ack_policy="all"))


def ack_none(q: Session) -> Consumer:
    """AckNone"""
    return consumer(q, "orders", "none", ConsumerConfig(ack_policy="none"))


def ack_wait(q: Session) -> Consumer:
    """Ack Wait"""
    return consumer(q, "orders", "wait", ConsumerConfig(ack_wait=30))  # the default


def max_deliver(q: Session) -> Consumer:
    """MaxDeliver"""
    # After five deliveries a message becomes a dead letter, with its last error. With -1, the
    # default, it is redelivered until it is acked.
    return consumer(q, "orders", "deliver", ConsumerConfig(max_deliver=5))


def backoff(q: Session) -> Consumer:
    """BackOff"""
    steps = (
        1,  # before the 1st retry
        5,  # before the 2nd
        30,  # before the 3rd
        120,  # before the 4th and all later ones
    )
    return consumer(q, "orders", "backoff", ConsumerConfig(backoff=steps))


def max_ack_pending(q: Session) -> Consumer:
    """MaxAckPending"""
    return consumer(q, "orders", "pending", ConsumerConfig(max_ack_pending=1000))  # the default


def main(folder: str) -> None:
    with ackflow.connect(f"{folder}/orders.db") as q:
        q.push("orders", [{"id": n} for n in range(3)])
        for example in (
            ack_explicit, ack_all, ack_none, ack_wait, max_deliver, backoff, max_ack_pending
        ):  # fmt: skip
            orders = example(q)
            orders.fetch(3, wait=0)[-1].ack()
            counts = q.group_stats(orders.queue, orders.name).counts
            print(f"{example.__doc__}: one ack of three, {counts.done} done, {counts.leased} held")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
