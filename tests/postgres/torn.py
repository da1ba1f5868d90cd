"""A broker in a process of its own that works and records what it was told, until it is killed.

    python -m tests.postgres.torn URL NAME PRODUCERS CONSUMERS FOLDER

Each record is one line, written before the next step: what happened, when, and to which message.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import ackflow
from ackflow import Session
from ackflow.errors import AckflowError

LEASE_SECONDS = 4.0
QUEUES = "plain", "ordered", "moved"  # `moved`: acked together with a push to `out`


class Record:
    """A file that holds what was written before a kill -9."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, queue: str, number: int, token: str = "-", at: int = 0) -> None:
        line = f"{what} {queue} {number} {token} {at or time.monotonic_ns()}\n"
        os.write(self._file, line.encode())


def produce(q: Session, record: Record, name: int, producer: int) -> None:
    number = (name * 100 + producer) * 1_000_000
    while True:
        queue = QUEUES[number % 3]
        with contextlib.suppress(AckflowError):
            record.note("tried", queue, number)
            q.push(queue, number, partition=str(number % 4))
            record.note("pushed", queue, number)
        number += 1
        time.sleep(0.005)


def consume(q: Session, record: Record, consumer: int) -> None:
    turn = consumer
    while True:
        queue = QUEUES[turn % 3]
        turn += 1
        group = "g" if queue == "ordered" else ""
        try:
            asked = time.monotonic_ns()
            batch = q.pop(
                queue, batch=3, lease_seconds=LEASE_SECONDS, **({"group": group} if group else {})
            )
            for message in batch:
                record.note("leased", queue, message.data, f"{message.token}/{asked}")
            for message in batch:
                began = time.monotonic_ns()
                if queue == "moved":
                    with q.transaction() as together:
                        together.ack(message)
                        together.push("out", message.data)
                else:
                    message.ack(confirm=True)
                record.note("acked", queue, message.data, f"{message.token}/{began}")
            if not batch:
                time.sleep(0.01)
        except AckflowError as error:
            record.note("refused", queue, 0, error.code)


def main(url: str, name: str, producers: str, consumers: str, folder: str) -> None:
    record = Record(Path(folder) / f"{name}-{os.getpid()}")
    q = ackflow.connect(url)
    for n in range(int(producers)):
        threading.Thread(target=produce, args=(q, record, os.getpid(), n), daemon=True).start()
    for n in range(int(consumers)):
        threading.Thread(target=consume, args=(q, record, n), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
