"""Waiting pops and their wake-ups.

A commit rings the first waiter of each kind; a waiter that gets something, or gives up, rings the
next. So a push wakes as many waiters as there is work for, and one more.
"""

import threading
from collections import deque

from ..clock import Signal

Kind = tuple[str, str, str | None]
ANY_QUEUE = "\0"  # begins the name of a waiter that is not for one queue


class Waiting:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kinds: dict[Kind, deque[Signal]] = {}
        self.some = threading.Event()

    def enter(self, kind: Kind, signal: Signal) -> None:
        """Wait for work of a kind: (queue, group, partition or None for any)."""
        with self._lock:
            self.kinds.setdefault(kind, deque()).append(signal)
            self.some.set()

    def leave(self, kind: Kind, signal: Signal) -> None:
        with self._lock:
            waiters = self.kinds[kind]
            waiters.remove(signal)
            if not waiters:
                del self.kinds[kind]
            if not self.kinds:
                self.some.clear()

    def ring(self, queues: set[str] | None = None) -> None:
        """Something may have come in these queues (None: in any)."""
        if not self.kinds:
            return
        with self._lock:
            for kind, waiters in self.kinds.items():
                if queues is None or kind[0] in queues or kind[0].startswith(ANY_QUEUE):
                    waiters[0].ring()

    def ring_all(self) -> None:
        """Nobody is to wait any longer."""
        with self._lock:
            for waiters in self.kinds.values():
                for signal in waiters:
                    signal.ring()

    def pass_on(self, kind: Kind) -> None:
        """The waiter that was rung got something, or gave up: let the next one look."""
        if kind not in self.kinds:
            return
        with self._lock:
            for signal in self.kinds.get(kind, ()):
                if not signal.rung():
                    signal.ring()
                    return
