"""A second router, with Spark started and warmed up, that waits to take the place of one that dies.

It touches neither the queue nor the checkpoint until it is told to. It hangs on a line, a pair of
sockets: the run says on it when to take over, and whoever finds it broken knows that the other died.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ..errors import AckflowError
from .failing import Deaths

READY, GO = b"r", b"g"
LOWER = 5  # not more: who may not raise a priority again goes on with this one as the router
PATIENCE = 0.5  # the dead may still be there, as zombies, when nobody hurries to bury them

Process = subprocess.Popen[bytes]


class Standby:
    """The standby of a run, which is not always there: one is started when `tend` is called.

    `spawn` starts a process with what it is given, an end of the line, as its stdin.
    """

    def __init__(
        self, spawn: Callable[[int], Process], deaths: Callable[[Callable[[], object]], Deaths],
        told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._spawn, self._told = spawn, told
        self.process: Process | None = None
        self.ready = False
        self._readied = 0
        self._deaths = deaths(lambda: self._readied)
        self._line: socket.socket | None = None
        self._given_up = False

    def tend(self) -> None:
        """See that there is one: start one, or another one if it died, while that helps."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self._forget()
            try:
                self._deaths.died(code)
            except AckflowError as error:
                self._given_up = True
                self._told(f"the router has no standby any more: {error.message}")
        if self.process is None and not self._given_up:
            self._start()
        elif (
            self._line is not None and not self.ready and select.select([self._line], [], [], 0)[0]
        ):
            self.ready = self._line.recv(1) == READY
            if self.ready:
                self._readied += 1
                self._told("the standby of the router is ready")

    def take_over(self) -> Process | None:
        """Tell the standby to be the router from now on; None when there is none that could.

        One that is not ready yet comes to it sooner than one that is not even started.
        """
        process, line = self.process, self._line
        if process is None or line is None or process.poll() is not None:
            return None
        with suppress(OSError):  # not everybody may raise a priority
            os.setpriority(os.PRIO_PGRP, process.pid, os.getpriority(os.PRIO_PROCESS, 0))
        try:
            line.send(GO)
        except OSError:
            return None
        self._forget()
        return process

    def stop(self) -> list[Process]:
        """Tell the standby to end, with its JVM, which would not notice in its first seconds."""
        if self.process is None:
            return []
        process = self.process
        with suppress(OSError):  # it is gone already
            os.killpg(process.pid, signal.SIGTERM)
        self._forget()
        return [process]

    def _start(self) -> None:
        self._deaths.started()
        self._line, theirs = socket.socketpair()
        with theirs:
            self.process = self._spawn(theirs.fileno())

    def _forget(self) -> None:
        if self._line is not None:
            self._line.close()
        self.process, self._line, self.ready = None, None, False


class Line:
    """The line as the standby has it: its stdin."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(0))
        self._told = False

    def ready(self) -> None:
        with suppress(OSError):  # nobody listens any more to one that was told already
            self._socket.send(READY)

    def told(self, seconds: float) -> bool:
        """Wait so long to be told to take over. When the run is gone, so is this process."""
        if not self._told and select.select([self._socket], [], [], seconds)[0]:
            with suppress(OSError):
                self._told = self._socket.recv(1) == GO
            if not self._told:
                sys.exit(0)
        return self._told


def end_group(process: Process) -> None:
    """End what a router leaves behind: its JVM, alive for a moment, could still write a checkpoint."""
    until = time.monotonic() + PATIENCE
    with suppress(OSError):  # there is nobody
        os.killpg(process.pid, signal.SIGKILL)
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
