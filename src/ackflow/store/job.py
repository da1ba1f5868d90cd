"""A verb on its way through group commit; group_commit.py has a diagram of its states."""

import threading
from collections.abc import Callable, Iterable, Sized
from typing import Any

from msgspec import Struct

from .protocol import Reach

UNASKED = Reach()
Verb = Callable[..., Any]  # called with the transaction and the job's arguments


class Job(Struct, eq=False):
    """One verb on its way through the writer, and its answer; see the diagram there."""

    verb: Verb
    args: tuple[Any, ...]
    synced: bool  # it must be on disk before it is answered
    merge: Any = None
    on_answer: "Callable[[Job], None] | None" = None  # called with the answer if no thread waits
    done: bool = False
    leading: bool = False
    abandoned: bool = False  # its thread was interrupted and no longer waits
    led_by_helper: bool = False  # its own thread must not lead, or it has none
    sync_batch: "list[Job] | None" = None  # the jobs its own thread has to sync, itself included
    sync_number: int = 0  # others' commits up to this number must be on disk before the answer
    commit: int = 0  # the number of its commit, in a store that numbers all of them
    on_disk: bool = False  # its commit was synced, with all before it
    reach: "Reach | None" = UNASKED  # what it reads and changes, in a store that is `by_queue`
    postponed: bool = False  # to the next group: something that it needs is not free
    wakeup: "threading.Lock | None" = None  # held while its thread waits for another one
    calls: "Sized | None" = None  # those that it answers, if it stands for several
    answer: Any = None
    error: BaseException | None = None

    @property
    def awaits_sync(self) -> bool:
        """Whether it succeeded and must be on disk before it is answered."""
        return self.synced and self.error is None and not self.on_disk


def count_calls(jobs: Iterable[Job]) -> int:
    """How many calls some jobs answer."""
    return sum(1 if job.calls is None else len(job.calls) for job in jobs)


def fences_of(job: Job) -> list[int]:
    return sorted(job.reach.fences or ()) if job.reach is not None else []
