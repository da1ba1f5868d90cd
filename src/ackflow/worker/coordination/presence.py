"""Which workers run: each leaves a keyed value, renews it, and deletes it when it stops.

    workers/ID      a consumer: where it runs, what it serves, what it does, what it has done

The value ends by itself some time after the last renewal, so a worker that was killed disappears. One
that was written while the clock was ahead is not listed.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ... import __version__
from ...clock import AHEAD, SECOND
from ...errors import AckflowError, Forbidden
from ...model import Value, when
from ...session.session import Session

log = logging.getLogger("ackflow.worker")
PREFIX = "workers/"
RENEW_SECONDS = 20.0
CHANGED_SECONDS = 3.0  # a worker with other messages than before is written that soon
LIVE_SECONDS = 65.0
STOP_SECONDS = 2.0  # how long a stop waits for the value to be deleted
MOST = 1_000
MOST_QUEUES, MOST_NAMES, MOST_RUNNING = 100, 50, 20


class ServedQueue(Struct, frozen=True):
    """A queue that a worker reads for a group, and the names of its processors or tasks."""

    queue: str
    group: str
    handlers: list[str]


class RunningMessage(Struct, frozen=True):
    """A message that is being processed."""

    queue: str
    group: str
    message_id: str
    handler: str
    since: datetime


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A running worker: one consumer of one process.

    `received` to `lost` count messages since its start, as in `Counts`. `running` are the messages in
    the hands of processors when it was seen last, the first twenty; `busy` is their number. `queues`
    are the first hundred. `reason` is why it is stopping.
    """

    id: str
    consumer: str
    host: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    queues: list[ServedQueue]
    mode: str
    concurrency: int
    busy: int
    running: list[RunningMessage]
    received: int
    acked: int
    rejected: int
    requeued: int
    failed: int
    put_off: int
    returned: int
    lost: int
    reason: str | None = None


class Reporting(Protocol):
    """A consumer that says what it does."""

    def report(self) -> dict[str, Any]: ...


def workers(session: Session) -> list[WorkerInfo]:
    """Return the running workers, the oldest first; at most a thousand."""
    now = session.broker.clock.now()
    found = [
        msgspec.convert(value.data, WorkerInfo)
        for value in session.values(PREFIX, limit=MOST)
        if _is_live(value, now)
    ]
    return sorted(found, key=lambda one: one.started_at)


def _is_live(value: Value, now: int) -> bool:
    age = (when(now) - value.updated_at).total_seconds()
    return -AHEAD / SECOND < age < LIVE_SECONDS


class Presence:
    """Writes the value of one worker, from a thread of its own."""

    def __init__(self, session: Session, consumer: Reporting) -> None:
        self._session = session
        self._consumer = consumer
        self._key = PREFIX + secrets.token_hex(8)
        self._clock = session.broker.clock
        self._started = self._clock.steady()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write the value, and renew it until `stop`."""
        self._thread = threading.Thread(target=self._loop, name="ackflow-presence", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Delete the value."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def _loop(self) -> None:
        written, shown, due = False, None, 0.0
        try:
            while not self._stop.is_set():
                info = self._info()
                working = {one.message_id for one in info.running}, info.reason
                if working != shown or time.monotonic() >= due:
                    written |= self._write(info)
                    shown, due = working, time.monotonic() + RENEW_SECONDS
                self._stop.wait(CHANGED_SECONDS)
            if written:
                with self._session.transaction() as t:
                    t.delete(self._key)
        except Forbidden as error:
            log.debug("this worker is not listed: %s", error)
        except AckflowError as error:  # the value ends by itself
            log.debug("the worker could not be taken off the list: %s", error)
        except Exception:
            log.exception("the worker is not listed any more; it continues")

    def _write(self, info: WorkerInfo) -> bool:
        try:
            with self._session.transaction() as t:
                t.put(self._key, msgspec.to_builtins(info), ttl=LIVE_SECONDS)
            return True
        except Forbidden:
            raise
        except AckflowError as error:
            log.debug("the worker could not be listed: %s", error)
            return False

    def _info(self) -> WorkerInfo:
        now, age = self._clock.now(), self._clock.steady() - self._started
        return WorkerInfo(
            id=self._key.removeprefix(PREFIX), consumer=self._session.consumer,
            host=socket.gethostname(), pid=os.getpid(), version=__version__,
            started_at=when(now - age), seen_at=when(now), **self._consumer.report(),
        )  # fmt: skip


def served(queue: str, group: str, handlers: Sequence[str]) -> ServedQueue:
    return ServedQueue(queue, group, sorted(handlers)[:MOST_NAMES])
