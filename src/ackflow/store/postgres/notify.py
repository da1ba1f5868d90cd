"""Waking other brokers on one PostgreSQL database, by NOTIFY and by polling.

A notification is sent after the commit and on a separate connection: inside a transaction it would
serialize all commits of the server. Behind a pooler, where no notification arrives, a broker with a
waiting pop polls every 50 ms; so it does where the server has no NOTIFY.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from .connection import Connection

POLL_SECONDS = 0.5
POLL_RESTS = 10.0  # a poll reads each queue's version: it pauses for this many times its duration
MOST_POLL_SECONDS = 5.0  # also after one that took long only because the machine was busy
LISTEN_SECONDS = 0.05  # the longest time that `close` may have to wait
RETRY_SECONDS = 1.0
PAUSE_SECONDS = 0.002  # between two notifications: one per commit would cost as much as the commit
# The newest row of each fence, one lookup for each: dead rows before it are not visited.
POLL = """with recursive newest (fence, n) as (
    (select fence, n from {writes} order by fence desc, n desc limit 1)
    union all
    select w.fence, w.n from newest cross join lateral (select fence, n from {writes}
        where fence < newest.fence order by fence desc, n desc limit 1) as w)
select sum(n) from newest"""


def channel_of(schema: str) -> str:
    """Return the channel on which the brokers of a schema are notified."""
    return f"ackflow_{schema}"


class Notifier:
    """Notifies other brokers of commits, and counts the notifications received from them."""

    def __init__(
        self, open: "Callable[[], Connection]", schema: str, notifications: bool = True
    ) -> None:
        self._open = open
        self._notifications = notifications
        self._channel = channel_of(schema)
        self._poll = POLL.format(writes=f'"{schema}".writes')
        self._requested = threading.Event()
        self._unsent = False
        self._closing = threading.Event()
        self._sender: threading.Thread | None = None
        self._listener: threading.Thread | None = None
        self._own_pid = 0  # the backend that sends our own notifications
        self.received = 0

    def notify(self) -> None:
        """Request a notification of other brokers; many calls may result in one notification."""
        if not self._notifications:
            return
        self._unsent = True
        if self._sender is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the others poll
                self._sender = self._start(self._send, "ackflow-notify")
        self._requested.set()

    def listen(self) -> int:
        """Return a number that changes when another broker may have committed something."""
        if self._listener is None:
            self._listener = self._start(self._listen, "ackflow-listen")
        return self.received

    def close(self) -> None:
        """Send the notification that was requested last, and end."""
        self._closing.set()
        self._requested.set()
        for thread in (self._sender, self._listener):
            if thread is not None:
                thread.join()

    def _start(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._retry, args=(run,), name=name, daemon=True)
        thread.start()
        return thread

    def _retry(self, run: Callable[[], None]) -> None:
        """Reconnect after a lost connection; notifications may have been missed meanwhile."""
        closing = False
        while not closing:
            with contextlib.suppress(psycopg.Error):
                run()
            self.received += 1
            closing = self._closing.wait(RETRY_SECONDS)

    def _send(self) -> None:
        with self._open() as db:
            self._own_pid = db.info.backend_pid
            while self._unsent or not self._closing.is_set():
                self._requested.wait()
                self._requested.clear()
                if self._unsent:
                    self._unsent = False
                    try:
                        db.execute(f"notify {self._channel}")
                    except psycopg.Error:
                        self._unsent = True  # on the next connection
                        self._requested.set()
                        raise
                    self._closing.wait(PAUSE_SECONDS)

    def _listen(self) -> None:
        with self._open() as db:
            deaf = db.pooled or not self._notifications
            if not deaf:
                db.execute(f"listen {self._channel}")
            seen, poll_at = -1, 0.0
            while not self._closing.is_set():
                if (now := time.monotonic()) >= poll_at:
                    # A broker that was killed between commit and NOTIFY has sent no notification.
                    row = db.execute(self._poll).fetchone()
                    poll_at = now + pause_between(now, time.monotonic(), deaf)
                    if row and row[0] != seen:
                        seen = row[0]
                        self.received += 1
                for notice in db.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    if notice.pid != self._own_pid:
                        self.received += 1


def pause_between(began: float, ended: float, deaf: bool) -> float:
    """Return the seconds from one poll to the next, by how long the first one took."""
    pause = min(POLL_RESTS * (ended - began), MOST_POLL_SECONDS)
    return max(0.0 if deaf else POLL_SECONDS, pause)
