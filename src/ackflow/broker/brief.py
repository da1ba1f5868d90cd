"""Jobs that an event loop may run itself, because their cost is bounded by what was asked for."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from ..store.job import Job
from .requests import PopRequest, Publication, PushRequest

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
            for chunk in job.merge.chunks:
                items, size = items + 1, size + len(chunk.data)
        else:
            verb: Any = job.verb
            arguments = job.args
            if isinstance(verb, partial):
                verb, arguments = verb.func, (*verb.args, *arguments)
            if verb not in _BRIEF:
                return False
            for argument in arguments:
                more, bytes_more = _weigh(argument)
                items, size = items + more, size + bytes_more
        if items > MAX_ITEMS or size > MAX_BYTES:
            return False
    return True


def count_plain_pushes(jobs: Sequence[Job]) -> int:
    """Return how many of the first jobs are pushes that look up nothing but their lanes, and are
    together small enough for an event loop."""
    items = size = 0
    for count, job in enumerate(jobs):
        request = job.merge
        if not isinstance(request, PushRequest) or request.key is not None:
            return count
        for chunk in request.chunks:
            if chunk.rest is not None:
                return count
            items, size = items + 1, size + len(chunk.data)
        if items > MAX_ITEMS or size > MAX_BYTES:
            return count
    return len(jobs)


def _weigh(argument: object) -> tuple[int, int]:
    """Return how many messages an argument is about, and how many bytes it brings."""
    kind = type(argument)
    if kind is int or kind is str or argument is None:
        return 0, 0
    if kind is list and len(argument) == 1:  # type: ignore[arg-type]
        return _weigh(argument[0])  # type: ignore[index]
    if isinstance(argument, PopRequest):
        return (argument.batch, 0) if argument.batch <= MAX_POP else (MAX_ITEMS + 1, 0)
    if isinstance(argument, Publication):
        return 1, len(argument.payload)
    if isinstance(argument, list):
        weights = [_weigh(one) for one in argument]
        return sum(items for items, _ in weights), sum(size for _, size in weights)
    return (1, 0) if isinstance(argument, Struct) else (0, 0)
