"""Dead letters in the style of Queen: limits, monitoring, reprocessing.

python examples/queen_dead_letters.py
"""

import sys
import tempfile
from collections.abc import Callable

import ackflow
from ackflow import QueueOptions, Session
from ackflow.session.dead_letters import Alert


def max_retries(q: Session) -> QueueOptions:
    """Max retries exceeded"""
    # The third failure makes it a dead letter. A limit never drops a message.
    return q.queue("orders").config(retry_limit=3).create()


def max_wait_time(q: Session) -> QueueOptions:
    """Max wait time exceeded"""
    return q.queue("time-sensitive").config(max_wait_seconds=3600).create()


def monitor(q: Session, send_alert: Callable[[str], object]) -> Alert:
    """Monitor DLQ regularly"""

    def on_alert(queue: str, depth: int) -> None:
        send_alert(f"High DLQ depth for {queue} queue")

    return q.alert_dead("orders", on_alert, above=100)  # checks once a minute until closed


def investigate(q: Session) -> dict[str, int]:
    """Investigate and fix root causes"""
    return q.dead_distribution("orders")  # by the text before the first colon, most frequent first


def reprocess(q: Session) -> int:
    """Reprocess when appropriate"""
    return q.reprocess(
        "orders"
    )  # with transaction id "reprocess-<id>", so that repeating adds nothing


def main(folder: str) -> None:
    with ackflow.connect(f"{folder}/queen.db") as q:
        max_retries(q)
        max_wait_time(q)
        q.push("orders", list(range(120)))
        for attempt in range(3):
            q.nack(q.pop("orders", batch=120), f"Timeout: attempt {attempt}")
        monitor(q, print).check()
        print("DLQ error distribution:", investigate(q))
        print(reprocess(q), "reprocessed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
