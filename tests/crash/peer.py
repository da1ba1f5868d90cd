"""One of several processes on a database; its arguments select what it does.

Usage: peer.py ROLE DATABASE [ARGUMENT...]. Each line on standard output is one event; every role
prints "ready" first and starts when it reads a line from standard input.
"""

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import ackflow
from ackflow import AckflowError
from ackflow.errors import SessionForked


def say(*words: object) -> None:
    print(*words, flush=True)


def begin() -> None:
    say("ready")
    sys.stdin.readline()


def push(path: str, name: str, count: str) -> None:
    """Push messages named after this process, singly and in batches, to two partitions."""
    with ackflow.connect(path) as q:
        begin()
        left = [f"{name}.{n}" for n in range(int(count))]
        while left:
            size = random.randint(1, 20)
            some, left = left[:size], left[size:]
            q.push("jobs", some, partition=random.choice("ab"))
    say("done")


def pop(path: str) -> None:
    """Pop and ack until a stop message, which is released for the next process."""
    with ackflow.connect(path) as q:
        begin()
        while True:
            for message in q.pop("jobs", batch=random.randint(1, 10), wait=10):
                if message.data == "stop":
                    message.release()
                    say("done")
                    return
                say("got", message.data)
                message.ack()


def open_new(path: str, rounds: str) -> None:
    """Open a sequence of new databases, each at a given time, and push to each."""
    say("ready")
    start = float(sys.stdin.readline())
    for number in range(int(rounds)):
        while time.time() < start + number * 0.1:
            pass
        try:
            with ackflow.connect(f"{path}.{number}") as q:
                say("id", q.push("jobs", os.getpid())[0])
        except AckflowError as error:
            say("refused", number, repr(error))


def wait(path: str) -> None:
    """Wait for messages, and print when each arrived."""
    with ackflow.connect(path) as q:
        begin()
        for _ in range(5):
            say("waiting")
            (message,) = q.pop("jobs", wait=30)
            say("woke", time.time() - message.data)
            message.ack()


def fork(path: str) -> None:
    """Use a session before and after a fork, in the parent and in the child.

    Upkeep is off: a thread inside SQLite during the fork would leave its mutexes locked.
    """
    q = ackflow.connect(path, upkeep=False)
    begin()
    q.push("jobs", ["one", "two", "three"])
    held = q.pop("jobs")[0]
    child = os.fork()
    if child == 0:
        refusals = [
            refusal(lambda: q.push("jobs", "never")),
            refusal(lambda: q.pop("jobs")),
            refusal(held.ack),
            refusal(q.queues),
            refusal(q.upkeep),
        ]
        q.close()
        say("child", *refusals, refusal(lambda: ackflow.connect(path)))
        with ackflow.connect(path + ".other") as mine:
            say("child pushed", len(mine.push("jobs", "five")))
        return
    os.waitpid(child, 0)
    held.ack()
    say("parent popped", q.pop("jobs")[0].data, q.group_stats("jobs").counts.done)
    q.push("jobs", "four")
    q.close()
    say("closed")


def refusal(act: Callable[[], object]) -> str:
    try:
        act()
    except SessionForked:
        return "forked"
    except AckflowError as error:
        return repr(error)
    return "allowed"


def keep(path: str) -> None:
    """Run upkeep until a second line is read, and create work that pops do not do."""
    with ackflow.connect(path) as q:
        begin()
        told = threading.Thread(target=sys.stdin.readline, daemon=True)
        told.start()
        numbers = itertools.count()
        while told.is_alive():
            q.push("jobs", "x")
            q.pop("jobs", group=f"{os.getpid()}.{next(numbers)}", lease_seconds=0.01)
            time.sleep(0.02)
    say("done")


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    globals()[role](*rest)
