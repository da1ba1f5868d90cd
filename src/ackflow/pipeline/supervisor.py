"""Supervision of the stages of a run: restart policy, recovery times, Spark's standby.

`RestartPolicy` decides whether a stage that exited is started again. `RecoveryTracker` measures how
long it takes until the messages of a dead stage are handed out again. `Standby` keeps a second
application with Spark started and warmed up:

    started ──► warming up ──READY──► ready ──GO──► is the application
       ▲             │                  │
       └── exited ◄──┴──────────────────┘      (restarted while the restart policy allows)
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from msgspec import Struct

from .. import Session
from ..errors import AckflowError, InvalidArgument, NotFound
from ..model import LeaseStats
from .declaration import Pipeline
from .state import broker_time, read_state

PARENT = "ACKFLOW_PIPELINE_PARENT"  # environment variable: process id of the run
EXIT_NO_RESTART = 2  # exit code of a stage that would fail again after a restart
MAX_ERRORS, MAX_KILLS = 5, 20
LONG_RUN = 60.0  # a stage that ran this long had started working
ERROR_PREFIX = "ackflow pipeline "

STANDBY_NICENESS = 5  # no higher: an unprivileged process keeps it when it takes over
KILL_TIMEOUT = 0.5
READY, GO = b"r", b"g"

# How Python and Java begin the line of an exception. Py4J's own only wraps another one.
_EXCEPTION_LINE = re.compile(r"(?:Caused by: |: )?[\w.]+\.(?!Py4J)\w*(?:Exception|Error): (.+)")

Process = subprocess.Popen[bytes]
Progress = Callable[[], object]


class PipelineFailed(AckflowError):
    """A stage of the pipeline keeps failing; its log says why."""

    code = "pipeline_failed"


class RestartPolicy:
    """Decides whether a stage that exited is started again.

    A stage that exits with `EXIT_NO_RESTART` is not restarted. Neither is a stage that exits
    repeatedly without progress: after `MAX_ERRORS` errors of its own, or after `MAX_KILLS` kills
    while no other stage made progress. `own` and `overall` return values that change with progress.
    """

    def __init__(self, name: str, log: Path, own: Progress, overall: Progress) -> None:
        self._name, self._log = name, log
        self._errors, self._kills = _FailureStreak(own), _FailureStreak(overall)

    def started(self) -> None:
        self._started_at = time.monotonic()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0

    def exited(self, code: int) -> None:
        """Count an exit; raise if the stage must not be started again."""
        if code == EXIT_NO_RESTART:
            raise InvalidArgument(self._last_error())
        streak, limit = (self._errors, MAX_ERRORS) if code > 0 else (self._kills, MAX_KILLS)
        failures = streak.count(time.monotonic() - self._started_at)
        if failures >= limit:
            raise PipelineFailed(
                f"{self._name} exited {failures} times without making progress, last error: "
                f"{self._last_error()}; see its log {self._log}"
            )

    def _last_error(self) -> str:
        """Return the error that the stage reported, or else the last line of its log."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        reported = [line.partition(": ")[2] for line in lines if line.startswith(ERROR_PREFIX)]
        written = [line for line in lines if line]
        return (reported or written or ["no output"])[-1]


class _FailureStreak:
    """Failures in a row without progress between them."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._before, self._failures = progress, progress(), 0

    def count(self, lived: float) -> int:
        before, self._before = self._before, self._progress()
        progressed = lived > LONG_RUN or before != self._before
        self._failures = 1 if progressed else self._failures + 1
        return self._failures


def error_summary(error: BaseException) -> str:
    """Return the one line that matters of a Spark error, which nests tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := _EXCEPTION_LINE.match(line))]
    first = (named or lines or [type(error).__name__])[0]
    return first.split(" SQLSTATE:")[0]


class Recovered(Struct, frozen=True):
    """A stage that recovered: after how many seconds, and how many messages it had held.

    `free`: seconds after which those messages were available to other consumers.
    """

    stage: str
    seconds: float
    held: int
    free: float | None = None

    def __str__(self) -> str:
        what = "working again"
        if self.held:
            what = f"its {self.held} messages were redelivered"
            if self.free is not None:
                what = f"its {self.held} messages were free after {self.free:.1f} s, redelivered"
        return f"{self.stage}: {what} {self.seconds:.1f} s after it died"


class _Outage(Struct):
    since: float
    last: float
    held: dict[str, LeaseStats]
    free: float | None = None


class RecoveryTracker:
    """Measures the time from the death of a stage until its messages are handed out again.

    A stage reports when it works (`report_working`). The messages of its predecessor count as
    handed out when their leases have ended and their partitions are served again or empty. The
    query `route` continues the batch in progress under the same lease.
    """

    def __init__(
        self, q: Session, pipeline: Pipeline, now: Callable[[], float] | None = None
    ) -> None:
        self._q, self._pipeline = q, pipeline
        self.now = now or partial(broker_time, q)
        self._outages: dict[str, _Outage] = {}

    def died(self, stage: str, at: float) -> None:
        """Record the leases of a dead stage; downtime counts from its first death."""
        outage = self._outages.setdefault(stage, _Outage(at, at, {}))
        outage.last = at
        outage.held |= {lease.token: lease for lease in self._leases(stage) if lease.held}

    def recovered(self, pids: Mapping[str, int]) -> list[Recovered]:
        """Return the stages that have recovered since the last call; `pids` are their processes."""
        now, found = self.now(), []
        for stage, outage in list(self._outages.items()):
            live = self._live_leases(outage)
            if outage.held and outage.free is None and not live & set(outage.held):
                outage.free = now - outage.since
            if self._is_working(stage, pids[stage]) and self._handed_out(outage, live):
                held = sum(lease.held for lease in outage.held.values())
                found.append(Recovered(stage, now - outage.since, held, outage.free))
                del self._outages[stage]
        return found

    def at_work(self, stage: str, pid: int) -> bool:
        """Return whether a stage works and no message of a predecessor waits."""
        return stage not in self._outages and self._is_working(stage, pid)

    def _live_leases(self, outage: _Outage) -> set[str]:
        groups = {(lease.queue, lease.group) for lease in outage.held.values()}
        return {lease.token for queue, group in groups for lease in self._q.leases(queue, group)}

    def _leases(self, stage: str) -> list[LeaseStats]:
        """Return the leases of a stage."""
        found: list[LeaseStats] = []
        for queue, group in _consumer_groups(self._pipeline, stage):
            try:
                found += self._q.leases(queue, group)
            except NotFound:  # the stage died before its first pop
                continue
        return found

    def _handed_out(self, outage: _Outage, live: set[str]) -> bool:
        died = datetime.fromtimestamp(outage.last, UTC)
        waiting: set[tuple[str, str, str]] = set()
        for token, lease in outage.held.items():
            if token not in live:
                waiting |= {(lease.queue, lease.group, name) for name in lease.partitions}
            elif lease.queue != self._pipeline.inbox:
                return False
        for queue, group in {(queue, group) for queue, group, _ in waiting}:
            for partition in self._q.progress(queue, group):
                place = (queue, group, partition.partition)
                if place not in waiting or partition.counts.lag == 0:
                    continue
                times = [lease.acquired_at for lease in partition.leases]
                times += [] if partition.last_at is None else [partition.last_at]
                if not any(at > died for at in times):
                    return False
        return True

    def _is_working(self, stage: str, pid: int) -> bool:
        return read_state(self._q, self._pipeline, "working").get(stage) == pid


def _consumer_groups(pipeline: Pipeline, stage: str) -> list[tuple[str, str]]:
    """Return the (queue, group) pairs that a stage consumes."""
    return {
        "spark": [(pipeline.inbox, "router"), (pipeline.ends, "answer")],
    }.get(stage, [])


def report_working(q: Session, pipeline: Pipeline, stage: str) -> None:
    """Report to the run that started this process that the stage works."""
    if PARENT in os.environ:
        t = q.transaction()
        t.put(pipeline.state_key("working", stage), os.getpid())
        t.commit()


class Standby:
    """A second Spark application that waits to take over when the first dies.

    It uses neither the queue nor the checkpoint before that. The run and the standby are
    connected by a socket pair: the standby sends READY, the run sends GO, and either sees a closed
    socket when the other has died. `spawn` starts a process with the given socket as its stdin.
    """

    def __init__(
        self, spawn: Callable[[int], Process], policy: Callable[[Progress], RestartPolicy],
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._spawn, self._report = spawn, report
        self.process: Process | None = None
        self.ready = False
        self._times_ready = 0
        self._policy = policy(lambda: self._times_ready)
        self._socket: socket.socket | None = None
        self._given_up = False

    def poll(self) -> None:
        """Start the standby if there is none, restart it if it died, and read its READY."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self._forget()
            try:
                self._policy.exited(code)
            except AckflowError as error:
                self._given_up = True
                self._report(f"Spark no longer has a standby: {error.message}")
        if self.process is None and not self._given_up:
            self._start()
        elif self._socket is not None and not self.ready and _readable(self._socket, 0):
            self.ready = self._socket.recv(1) == READY
            if self.ready:
                self._times_ready += 1
                self._report("Spark's standby is ready")

    def take_over(self) -> Process | None:
        """Make the standby the application and return its process; None if there is no live standby.

        A standby that is still warming up is used too: it works sooner than a new process.
        """
        process, connection = self.process, self._socket
        if process is None or connection is None or process.poll() is not None:
            return None
        with suppress(OSError):  # raising a priority may need privileges
            os.setpriority(os.PRIO_PGRP, process.pid, os.getpriority(os.PRIO_PROCESS, 0))
        try:
            connection.send(GO)
        except OSError:
            return None
        self._forget()
        return process

    def stop(self) -> list[Process]:
        """Terminate the standby and its JVM, which ignores a closed stdin while it starts."""
        if self.process is None:
            return []
        process = self.process
        with suppress(OSError):  # it has exited already
            os.killpg(process.pid, signal.SIGTERM)
        self._forget()
        return [process]

    def _start(self) -> None:
        self._policy.started()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = self._spawn(theirs.fileno())

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.process, self._socket, self.ready = None, None, False


class TakeOverSignal:
    """The standby's end of the socket pair, which is its stdin."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(0))
        self._received = False

    def report_ready(self) -> None:
        with suppress(OSError):  # the run closes its end after GO
            self._socket.send(READY)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for GO. Exits this process if the run is gone."""
        if not self._received and _readable(self._socket, seconds):
            with suppress(OSError):
                self._received = self._socket.recv(1) == GO
            if not self._received:
                sys.exit(0)
        return self._received


def _readable(connection: socket.socket, seconds: float) -> bool:
    return bool(select.select([connection], [], [], seconds)[0])


def kill_group(process: Process) -> None:
    """Kill the rest of a dead process group: its JVM could still write a checkpoint.

    Waits up to `KILL_TIMEOUT`, since killed processes stay as zombies until they are reaped.
    """
    until = time.monotonic() + KILL_TIMEOUT
    with suppress(OSError):  # the group is empty
        os.killpg(process.pid, signal.SIGKILL)
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
