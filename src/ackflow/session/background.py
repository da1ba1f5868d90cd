"""What a session runs beside its caller: consumers, buffers and alerts."""

import contextlib
import threading
from typing import Any, TypeVar

from .buffer import Buffer
from .consumer import Consumer

T = TypeVar("T")


class BackgroundTasks:
    """The running consumers, buffers and alerts of a session; closing it ends them all."""

    def __init__(self) -> None:
        self._tasks: list[Any] = []
        self._lock = threading.Lock()

    def add(self, task: T) -> T:
        with self._lock:
            self._tasks.append(task)
        return task

    def discard(self, task: object) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._tasks.remove(task)

    def close(self) -> None:
        """Close consumers first, then the buffers they may have filled; raise the first error at
        the end."""
        with self._lock:
            tasks = sorted(self._tasks, key=lambda task: isinstance(task, Buffer))
        errors: list[BaseException] = []
        for task in tasks:
            if isinstance(task, Consumer):
                task.stop()
        for task in tasks:
            try:
                task.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
