"""Common processing loops of JetStream consumers.

python examples/jetstream_patterns.py
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import ackflow
from ackflow import Message, Session
from ackflow.jetstream import Consumer, ConsumerConfig, consumer

log = logging.getLogger(__name__)
Process = Callable[[Message], object]


def simple(orders: Consumer, process: Process) -> None:
    """Simple Processing"""
    for message in orders.fetch(10, wait=1):
        try:
            process(message)
        except Exception as error:
            message.nack(str(error))
            continue
        message.ack()


def with_timeout_handling(orders: Consumer, process: Process, every: float = 10) -> None:
    """With Timeout Handling"""
    # `orders.consume(process, renew=10)` does the same with a background thread.
    with ThreadPoolExecutor(1) as worker:
        for message in orders.fetch(10, wait=1):
            working = worker.submit(process, message)
            while not wait([working], timeout=every).done:
                message.in_progress()  # also for the messages fetched with it: they share a lease
            error = working.exception()
            if error is None:
                message.ack()
            else:
                message.nack(str(error))


def poison(orders: Consumer, process: Process) -> None:
    """Poison Message Handling"""
    for message in orders.fetch(10, wait=1):
        if message.metadata.num_delivered > 3:
            log.warning("Poison message detected: %s", message.subject)
            message.term("poison message")  # moves it to the dead letters
            continue
        try:
            process(message)
        except Exception as error:
            message.nack(str(error))
            continue
        message.ack()


def batch_ack(orders: Consumer, process: Process) -> None:
    """Batch Ack (AckAll policy)"""
    last = None
    for message in orders.fetch(100, wait=1):
        process(message)
        last = message
    if last is not None:
        last.ack()


def dead_letter_queue(q: Session, message: Message, max_deliveries: int) -> None:
    """Dead Letter Queues"""
    # `ConsumerConfig(max_deliver=...)` needs no such queue. With a queue of your own, move the
    # message in a transaction, so that it is always in exactly one of the two queues.
    if message.metadata.num_delivered >= max_deliveries:
        with q.transaction() as t:
            t.push("dlq.orders", message.data)
            t.ack(message)


def main(folder: str) -> None:
    def process(message: Message) -> None:
        if message.data["id"] == 2:
            raise ValueError("no such customer")

    with ackflow.connect(f"{folder}/orders.db") as q:
        q.push("orders", [{"id": n} for n in range(5)])
        simple(consumer(q, "orders", "simple"), process)
        with_timeout_handling(consumer(q, "orders", "timeout"), process)
        for _ in range(4):
            poison(consumer(q, "orders", "poison"), process)
        batch_ack(consumer(q, "orders", "batch", ConsumerConfig(ack_policy="all")), print)
        for message in consumer(q, "orders", "moving").fetch(5):
            dead_letter_queue(q, message, max_deliveries=1)
        for group in q.queue_stats("orders").groups:
            counts = group.counts
            print(f"{group.name}: {counts.done} done, {counts.ready} ready, {counts.dead} dead")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
