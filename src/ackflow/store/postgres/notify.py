"""How brokers on one PostgreSQL database wake each other: by NOTIFY, and by looking now and then.

A notice is sent after the commit and on a connection of its own, as one inside a transaction makes
all commits of the server wait for each other. Behind a pooler, where no notice arrives, a broker with
a waiting pop looks every 50 ms.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from .connection import Connection

LOOK_SECONDS = 0.5
HEAR_SECONDS = 0.05  # how long closing may have to wait
AGAIN_SECONDS = 1.0


class Bell:
    """Tells other brokers that something was committed, and counts what they tell."""

    def __init__(self, open: "Callable[[], Connection]", schema: str) -> None:
        self._open = open
        self._channel = f"ackflow_{schema}"
        self._look = f'select n from "{schema}".writes'
        self._rung = threading.Event()
        self._closing = threading.Event()
        self._ringer: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self._me = 0  # the backend that sends our own notices
        self.heard = 0

    def ring(self) -> None:
        """Tell the others, soon; many calls may become one notice."""
        if self._ringer is None:
            self._ringer = self._start(self._ring, "ackflow-bell")
        self._rung.set()

    def listen(self) -> int:
        """A number that changes when another broker may have committed something."""
        if self._listener is None:
            self._listener = self._start(self._listen, "ackflow-ear")
        return self.heard

    def close(self) -> None:
        self._closing.set()
        self._rung.set()
        for thread in (self._ringer, self._listener):
            if thread is not None:
                thread.join()

    def _start(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._persist, args=(run,), name=name, daemon=True)
        thread.start()
        return thread

    def _persist(self, run: Callable[[], None]) -> None:
        """A server that was away is asked again; whatever was missed counts as heard."""
        while not self._closing.is_set():
            with contextlib.suppress(psycopg.Error):
                run()
            self.heard += 1
            self._closing.wait(AGAIN_SECONDS)

    def _ring(self) -> None:
        with self._open() as db:
            self._me = db.info.backend_pid
            while self._rung.wait() and not self._closing.is_set():
                self._rung.clear()
                db.execute(f"notify {self._channel}")

    def _listen(self) -> None:
        with self._open() as db:
            if not db.pooled:
                db.execute(f"listen {self._channel}")
            seen, look_at = -1, 0.0
            while not self._closing.is_set():
                if db.pooled or time.monotonic() >= look_at:
                    # One that was killed between its commit and its notice has told nobody.
                    look_at = time.monotonic() + LOOK_SECONDS
                    row = db.execute(self._look).fetchone()
                    if row and row[0] != seen:
                        seen = row[0]
                        self.heard += 1
                for notice in db.notifies(timeout=HEAR_SECONDS, stop_after=1):
                    if notice.pid != self._me:
                        self.heard += 1
