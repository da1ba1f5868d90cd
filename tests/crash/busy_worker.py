"""A process under load that is killed: works on a database and reports on standard output.

Each line is one system call, so a kill never leaves half a line. "trying" comes before a call and
"did" after it has returned; "got" lists the messages of a pop. Usage: busy_worker.py DATABASE RUN
"""

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable

import ackflow
from ackflow import AckflowError, Session
from ackflow.errors import LeaseLost, TransactionFailed

QUEUES = ("plain", "confirmed", "batched", "moving")
AHEAD = 200


def tell(what: str, queue: str, names: Iterable[str]) -> None:
    os.write(1, "".join(f"{what} {queue} {name}\n" for name in names).encode())


class Worker:
    def __init__(self, q: Session, run: int) -> None:
        self._q = q
        self._run = run
        self._room = {queue: threading.Semaphore(AHEAD) for queue in QUEUES}

    def push(self, queue: str) -> None:
        """Push one to five messages at a time, never far ahead of the consumers."""
        numbers = itertools.count()
        while True:
            names = [f"{self._run}.{next(numbers)}" for _ in range(random.randint(1, 5))]
            for _ in names:
                self._room[queue].acquire(timeout=0.05)
            self._q.push(queue, names)
            tell("pushed", queue, names)

    def ack_plainly(self) -> None:
        self._settle_each("plain", lambda message: message.ack())

    def ack_with_confirmation(self) -> None:
        self._settle_each("confirmed", lambda message: message.ack(confirm=True))

    def move(self) -> None:
        def move(message: ackflow.Message) -> None:
            with self._q.transaction() as t:
                t.ack(message).push("moved", message.data)

        self._settle_each("moving", move)

    def _settle_each(self, queue: str, settle: Callable[[ackflow.Message], None]) -> None:
        while True:
            for message in self._pop(queue):
                name = message.data
                tell("trying", queue, [name])
                try:
                    settle(message)
                except (LeaseLost, TransactionFailed):
                    continue
                tell("did", queue, [name])

    def ack_whole_batches(self) -> None:
        while True:
            batch = self._pop("batched")
            names = [message.data for message in batch]
            tell("trying", "batched", names)
            if not self._q.ack(batch).refused:
                tell("did", "batched", names)

    def _pop(self, queue: str) -> ackflow.Batch[ackflow.Message]:
        batch = self._q.pop(queue, batch=5, wait=1, lease_seconds=1)
        tell("got", queue, [message.data for message in batch])
        for _ in batch:
            self._room[queue].release()
        return batch


def guarded(work: Callable[[], None]) -> None:
    try:
        work()
    except AckflowError as error:
        os.write(1, f"failed - {error!r}\n".encode())
    except BaseException as error:
        os.write(1, f"failed - {error!r}\n".encode())
        raise


def main(path: str, run: int) -> None:
    worker = Worker(ackflow.connect(path), run)
    jobs: list[Callable[[], None]] = [
        worker.ack_plainly,
        worker.ack_with_confirmation,
        worker.ack_whole_batches,
        worker.move,
        worker.move,
        *(lambda queue=queue: worker.push(queue) for queue in QUEUES),
    ]
    for job in jobs:
        threading.Thread(target=guarded, args=(job,), daemon=True).start()
    tell("ready", "-", ["-"])
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
