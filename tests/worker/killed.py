"""Kill a worker with -9 at random moments, many times, and let the last one finish.

Run as a program: `killed.py FOLDER KILLS SEED`. Each round forks a worker that pushes messages of
its own, processes whatever there is, and is killed. A processor writes to a file, outside of any
transaction, and pushes to the queue `done`, in the transaction of its acknowledgement.
"""

import os
import random
import signal
import sys
import time

import ackflow
from ackflow import Message
from ackflow.worker import ACK, Extension, ProcessorSession, RunState, Status, Worker

EACH = 60  # messages that a round pushes


class UntilDone(Extension):
    """Interrupt the run once the queue has nothing left."""

    def idle(self, run: RunState) -> None:
        if not run.worker.session.group_stats("work", "__QUEUE_MODE__").counts.lag:
            run.interrupt("everything is done")


def make(folder: str) -> Worker:
    worker = Worker(os.path.join(folder, "q.db"), lease_seconds=0.5, redelivery_delay=0.05)
    processed = os.open(os.path.join(folder, "processed"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @worker.processor("work")
    def process(message: Message, session: ProcessorSession) -> Status:
        time.sleep(random.random() * 0.01)
        os.write(processed, b"%d\n" % message.data)
        session.push("done", message.data)
        return ACK

    return worker


def push(session: ackflow.Session, number: int) -> None:
    """Push the messages of a round; a repeat adds nothing."""
    some = list(range(number * EACH, (number + 1) * EACH))
    session.push("work", some, key=f"round-{number}")


def main(folder: str, kills: int, seed: int) -> None:
    random.seed(seed)
    pauses = [random.uniform(0.02, 0.25) for _ in range(kills)]
    for number, pause in enumerate(pauses):
        pid = os.fork()
        if pid == 0:
            worker = make(folder)
            push(worker.session, number)
            worker.run(concurrency=4)
            os._exit(1)  # it is never reached: the worker is killed
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "the worker ended by itself"
    worker = make(folder)
    for number in range(kills):
        push(worker.session, number)
    worker.add(UntilDone())
    worker.run(concurrency=4)
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
