"""In which order a consumer of several queues serves them.

`Q(1)` is one turn, `Q(*)` turns until the queue is empty:

| mode | order of three queues |
|---|---|
| round-robin | Q1(1) Q2(1) Q3(1) |
| sequential-exhaustive | Q1(*) Q2(*) Q3(*) |
| strict-priority-interleaving | Q1(*) Q2(1) Q1(*) Q3(1) |
| hierarchical | ((Q1(*) Q2(1))(*) Q3(1))(*) |
| weighted | Q1(w1) Q2(w2) Q3(w3); an empty queue ends its turns |

A turn is what a consumer takes at once: one message, or more while messages are processed so
quickly that they are popped ahead.
"""

from collections.abc import Generator, Sequence
from typing import Literal, TypeVar, get_args

from ... import validate

T = TypeVar("T")
Mode = Literal[
    "round-robin",
    "sequential-exhaustive",
    "strict-priority-interleaving",
    "hierarchical",
    "weighted",
]
MODES: tuple[str, ...] = get_args(Mode)
# Yields the index of the queue to serve; is sent whether that queue had a message. Returns whether
# any queue of the cycle had one.
Cycle = Generator[int, bool, bool]


class Turns:
    """The order of turns. `next` names a queue; `took` says what came of its turn.

    `idle` is True after a whole cycle in which no queue had a message.
    """

    def __init__(self, mode: str, weights: Sequence[int]) -> None:
        self._mode = validate.one_of(mode, "mode", MODES)
        self._weights = [validate.integer(weight, "weight", 1, 1_000_000) for weight in weights]
        self.idle = False
        self._begin()

    def next(self) -> int:
        """The index of the queue whose turn it is."""
        return self._current

    def took(self, found: bool) -> None:
        """Report whether the queue had a message; the next turn follows from it."""
        self.idle = False
        try:
            self._current = self._cycle.send(found)
        except StopIteration as end:
            self.idle = not end.value
            self._begin()

    def _begin(self) -> None:
        queues = list(range(len(self._weights)))
        match self._mode:
            case "round-robin":
                self._cycle = _weighted([1] * len(queues))
            case "weighted":
                self._cycle = _weighted(self._weights)
            case "sequential-exhaustive":
                self._cycle = _exhaustive(queues)
            case "strict-priority-interleaving":
                self._cycle = _interleaving(queues)
            case _:
                self._cycle = _hierarchical(queues)
        self._current = next(self._cycle)


def _until_empty(queue: int) -> Cycle:
    """Q(*)"""
    found = False
    while (yield queue):
        found = True
    return found


def _exhaustive(queues: Sequence[int]) -> Cycle:
    found = False
    for queue in queues:
        found = (yield from _until_empty(queue)) or found
    return found


def _weighted(weights: Sequence[int]) -> Cycle:
    found = False
    for queue, weight in enumerate(weights):
        for _ in range(weight):
            if not (yield queue):
                break
            found = True
    return found


def _interleaving(queues: Sequence[int]) -> Cycle:
    first, *others = queues
    found = yield from _until_empty(first)
    for number, queue in enumerate(others):
        found = (yield queue) or found
        if number + 1 < len(others):
            found = (yield from _until_empty(first)) or found
    return found


def _hierarchical(queues: Sequence[int]) -> Cycle:
    """Serve the last queue once whenever all before it are empty, and those by the same rule."""
    *before, last = queues
    if not before:
        return (yield from _until_empty(last))
    found = False
    while True:
        found = (yield from _hierarchical(before)) or found
        if not (yield last):
            return found
        found = True
