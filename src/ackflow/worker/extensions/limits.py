"""Limits after which a consumer stops: messages, time, memory."""

import os
import resource
import sys
import threading

from ... import validate
from ...validate import Duration
from ..context import Context, RunState
from ..hooks import Extension, Middleware


class MessageLimit(Extension, Middleware):
    """Stop after a number of messages: exactly this many are processed, the others are returned."""

    def __init__(self, limit: int) -> None:
        self._limit = validate.integer(limit, "message_limit", 1, 1 << 60)
        self._begun = 0
        self._lock = threading.Lock()

    def on_start(self, run: RunState) -> None:
        """Count from the start of the consumer."""
        self._begun = 0

    def pre_received(self, context: Context) -> None:
        """Count a message; return it if the limit is reached."""
        if self._count(context):
            context.notes[MessageLimit] = True
        else:
            context.release()

    def before_settle(self, context: Context) -> None:
        """Count a message whose status was decided by another extension."""
        if context.status is not None and MessageLimit not in context.notes:
            self._count(context)

    def _count(self, context: Context) -> bool:
        """Count a message, unless the limit is reached; returns whether it was counted."""
        with self._lock:
            room = self._begun < self._limit
            self._begun += room
            last = self._begun == self._limit
        if last:
            context.interrupt(f"the limit of {self._limit:,} messages is reached")
        return room


class TimeLimit(Extension):
    """Stop after a time."""

    def __init__(self, seconds: Duration) -> None:
        self._seconds = validate.positive(seconds, "time_limit")
        self._until = 0

    def on_start(self, run: RunState) -> None:
        """Start the time."""
        self._until = run.worker.clock.steady() + round(self._seconds * 1e6)

    def before_receive(self, run: RunState) -> None:
        """Stop if the time is over."""
        self._check(run)

    def idle(self, run: RunState) -> None:
        """Stop if the time is over."""
        self._check(run)

    def post_received(self, context: Context) -> None:
        """Stop if the time is over."""
        self._check(context.run)

    def _check(self, run: RunState) -> None:
        if run.worker.clock.steady() >= self._until:
            run.interrupt(f"the time limit of {self._seconds:g} s is reached")


class MemoryLimit(Extension):
    """Stop when the process uses more memory; a supervisor starts a fresh one."""

    def __init__(self, megabytes: int) -> None:
        self._limit = validate.integer(megabytes, "memory_limit", 1, 1 << 30)

    def before_receive(self, run: RunState) -> None:
        """Stop if the process is too large."""
        self._check(run)

    def idle(self, run: RunState) -> None:
        """Stop if the process is too large."""
        self._check(run)

    def _check(self, run: RunState) -> None:
        used = memory_used() >> 20
        if used >= self._limit:
            run.interrupt(f"the process uses {used:,} MB; the limit is {self._limit:,} MB")


def memory_used() -> int:
    """The resident memory of this process in bytes; the highest so far where only that is known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
