"""Jobs that an event loop may run itself, because their cost is bounded by what was asked for."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ..store.job import Job
from .requests import PopRequest, PushRequest

F = TypeVar("F", bound=Callable[..., Any])
MAX_ITEMS = 256  # messages and chunks of a turn of the loop
MAX_BYTES = 256 * 1024  # of the payloads that a turn pushes
MAX_POP = 32  # messages of a pop, whose size is not known before

_BRIEF: set[Callable[..., Any]] = set()


def brief(verb: F) -> F:
    """Declare that the cost of a verb is bounded by the messages that its arguments name."""
    _BRIEF.add(verb)
    return verb


def all_brief(jobs: Sequence[Job]) -> bool:
    """Return whether jobs are together small enough for an event loop."""
    items, size = len(jobs), 0
    for job in jobs:
        if isinstance(job.merge, PushRequest):
            chunks = job.merge.chunks
            items += len(chunks) - 1
            for chunk in chunks:
                size += len(chunk.data)
        elif (count := _items(job)) is None:
            return False
        else:
            items += count
        if items > MAX_ITEMS or size > MAX_BYTES:
            return False
    return True


def _items(job: Job) -> int | None:
    """Return how many messages a job is about; None if it is not brief."""
    verb = job.verb
    if (verb.func if isinstance(verb, partial) else verb) not in _BRIEF:
        return None
    items = 0
    for argument in job.args:
        if isinstance(argument, PopRequest):
            if argument.batch > MAX_POP:
                return None
            items += argument.batch
        elif isinstance(argument, list):
            items += len(argument)
    return items
