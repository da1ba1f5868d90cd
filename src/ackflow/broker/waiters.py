"""Waiting pops, and how commits wake them.

A commit wakes the first waiter of each key. A waiter that gets messages, or stops waiting, wakes
the next one. A push therefore wakes one waiter more than there is work for.
"""

import threading
from collections import deque

from ..clock import Signal

# The key of a waiting pop: queue, group, and partition or None for any.
WaitKey = tuple[str, str, str | None]
ANY_QUEUE = "\0"  # the first character of a key that is not for one queue


class Waiters:
    """The pops of this process that wait for messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_key: dict[WaitKey, deque[Signal]] = {}
        self.present = threading.Event()  # set while there is a waiter

    def enter(self, key: WaitKey, signal: Signal) -> None:
        with self._lock:
            self.by_key.setdefault(key, deque()).append(signal)
            self.present.set()

    def leave(self, key: WaitKey, signal: Signal) -> None:
        with self._lock:
            waiters = self.by_key[key]
            waiters.remove(signal)
            if not waiters:
                del self.by_key[key]
            if not self.by_key:
                self.present.clear()

    def wake(self, queues: set[str] | None = None) -> None:
        """Wake the first waiter of each key of these queues (None: of every queue)."""
        if not self.by_key:
            return
        with self._lock:
            for key, waiters in self.by_key.items():
                if queues is None or key[0] in queues or key[0].startswith(ANY_QUEUE):
                    waiters[0].ring()

    def wake_all(self) -> None:
        """Wake every waiter, because the broker is closing."""
        with self._lock:
            for waiters in self.by_key.values():
                for signal in waiters:
                    signal.ring()

    def wake_next(self, key: WaitKey) -> None:
        """Wake the next waiter of a key, after one got messages or stopped waiting."""
        if key not in self.by_key:
            return
        with self._lock:
            for signal in self.by_key.get(key, ()):
                if not signal.rung():
                    signal.ring()
                    return
