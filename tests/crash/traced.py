"""One of several processes that work on a database while trace.c records their writes and syncs.

Usage: traced.py DATABASE NAME MAY_LOSE STEPS SEED. It opens the file, prints "open", works after it
has read a line, closes the file and prints "closed"; then it repeats all of this once. Its
operations and their confirmations are notes in the trace: [verb, "starts" or "ends", messages...].
"""

import ctypes
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import ackflow
from ackflow import Message
from ackflow.store.durability import MayLose

GROUP = "g"
FILLERS = (0, 0, 0, 200, 3_000, 20_000)
_trace = ctypes.CDLL(None)


def note(*words: object) -> None:
    text = json.dumps(words).encode()
    _trace.trace_note(text, len(text))


@contextmanager
def noted(verb: str, names: list[str]) -> Iterator[None]:
    note(verb, "starts", names)
    yield
    note(verb, "ends", names)


class Worker:
    def __init__(self, path: str, name: str, may_lose: MayLose, seed: int) -> None:
        self._path = path
        self._name = name
        self._may_lose: MayLose = may_lose
        self._chance = random.Random(seed)
        self._pushed = 0
        self._steady = name == "w0"  # writes enough in one session for a checkpoint

    def open(self) -> None:
        self._q = ackflow.connect(self._path, may_lose=self._may_lose)
        self._q.configure("jobs", max_deliver=None)
        self._q.configure("scratch", keep_seconds=0)
        self._held: list[Message] = []

    def close(self) -> None:
        note("threads", "ends", [thread.name for thread in threading.enumerate()])
        self._q.close()

    def work(self) -> None:
        verbs: dict[Callable[[], None], int] = {
            self.push: 34,
            self.pop: 22,
            self.ack: 8,
            self.confirm: 12,
            self.move: 10,
            self.fail: 3,
            self.reject: 3,
            self.scratch: 7,
            self.open_again: 1,
        }
        if self._steady:
            verbs |= {self.scratch: 25, self.open_again: 0}
        (verb,) = self._chance.choices(list(verbs), list(verbs.values()))
        verb()

    def push(self) -> None:
        names = [f"{self._name}.{self._pushed + n}" for n in range(self._chance.choice((1, 1, 5)))]
        self._pushed += len(names)
        filler = "x" * self._chance.choice(FILLERS)
        partition = self._chance.choice("ab")
        note("push", "starts", names)
        bodies = [{"name": name, "filler": filler} for name in names]
        ids = self._q.push("jobs", bodies, partition=partition)
        note("push", "ends", names, [str(id) for id in ids])

    def pop(self) -> None:
        batch = self._q.pop("jobs", group=GROUP, batch=self._chance.choice((1, 5, 50)))
        if batch:
            note("pop", "ends", [m.data["name"] for m in batch], [str(m.id) for m in batch])
        self._held += batch

    def _take(self, most: int = 3) -> list[Message]:
        count = self._chance.randint(1, most)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def ack(self) -> None:
        for message in self._take():
            with noted("ack", [message.data["name"]]):
                message.ack()

    def confirm(self) -> None:
        if taken := self._take():
            with noted("confirm", [message.data["name"] for message in taken]):
                assert not self._q.ack(taken, confirm=True).refused

    def move(self) -> None:
        for message in self._take(1):
            name = message.data["name"]
            with noted("move", [name]), self._q.transaction() as t:
                t.ack(message).push("out", {"name": name})

    def fail(self) -> None:
        for message in self._take(1):
            if not message.failures:
                message.nack("failed")

    def reject(self) -> None:
        for message in self._take(1):
            with noted("reject", [message.data["name"]]):
                message.reject("unwanted")

    def scratch(self) -> None:
        """Free pages and reuse them, so that the file is not only appended to."""
        self._q.push("scratch", ["y" * 9_000] * (12 if self._steady else 3))
        self._q.pop("scratch", batch=12, auto_ack=True)

    def open_again(self) -> None:
        self.close()
        self.open()


def main(path: str, name: str, may_lose: str, steps: str, seed: str) -> None:
    worker = Worker(path, name, cast(MayLose, may_lose), int(seed))
    for _ in range(2):
        worker.open()
        print("open", flush=True)
        sys.stdin.readline()
        for _ in range(int(steps)):
            worker.work()
        worker.close()
        print("closed", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
