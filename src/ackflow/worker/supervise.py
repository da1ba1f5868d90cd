"""Run consumers as processes: several at once, started again when they end, or when code changes.

started ── ends with 0 (a limit) ──► started at once
        ── ends otherwise ─────────► pause, growing to a minute ──► started
        ── lived for a minute ─────► the next pause is short again
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from .context import RunState
from .errors import ConsumerDied
from .hooks import Extension
from .worker import Worker

log = logging.getLogger("ackflow.worker")
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
HEALTHY_SECONDS = 60.0
POLL_SECONDS = 0.1
RELOAD_SECONDS = 0.5
PARENT_PIPE = "ACKFLOW_PARENT_PIPE"
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


class Child(Struct, eq=False):
    """One consumer process, or the pause before it is started again."""

    number: int
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    failures: int = 0
    start_at: float = 0.0
    finished: bool = False


class Supervisor:
    """Runs a command as several processes until it is told to stop.

    Without `restart`, the first process that fails ends all others.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int = 1,
        restart: bool = False,
        reload: Path | None = None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._command = list(command)
        self._children = [Child(number) for number in range(1, processes + 1)]
        self._restart = restart
        self._reload = reload
        self._pauses = pauses
        self._signals = 0
        self._error: ConsumerDied | None = None
        # Consumers hold the other end: it closes when this process ends, in whatever way.
        self._pipe = os.pipe()

    def run(self) -> None:
        """Run until TERM, QUIT or INT, or until every process has finished; raises ConsumerDied."""
        before = {
            number: signal.signal(number, self._stop)
            for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)
        }
        files = _changes(self._reload) if self._reload else None
        look_at = 0.0
        try:
            while not self._signals and not all(child.finished for child in self._children):
                for child in self._children:
                    self._look_after(child)
                if self._error is not None:
                    break
                if files is not None and time.monotonic() >= look_at:
                    look_at = time.monotonic() + RELOAD_SECONDS
                    if changed := next(files):
                        log.info("%s has changed; the consumers are started again", changed)
                        self._end_all()
                time.sleep(POLL_SECONDS)
            self._end_all()
        finally:
            self._kill_all()
            for number, handler in before.items():
                signal.signal(number, handler)
            for end in self._pipe:
                os.close(end)
        if self._error is not None:
            raise self._error

    def _stop(self, number: int, _: object) -> None:
        self._signals += 1

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.finished:
            return
        if child.process is None:
            if now >= child.start_at:
                self._start(child)
            return
        code = child.process.poll()
        if code is None:
            return
        lived = now - child.started
        said = f"consumer {child.number} (pid {child.process.pid}) {ended(code)}"
        child.process = None
        if code == 0:
            child.failures = 0
            child.finished = not self._restart
            log.info("%s after %.0f s", said, lived)
        elif not self._restart:
            self._error = ConsumerDied(f"{said}; the others are stopped")
        else:
            child.failures = 1 if lived >= HEALTHY_SECONDS else child.failures + 1
            pause = self._pauses[min(child.failures, len(self._pauses)) - 1]
            child.start_at = now + pause
            log.error("%s after %.0f s; it is started again in %g s", said, lived, pause)

    def _start(self, child: Child) -> None:
        environment = {**os.environ, PARENT_PIPE: str(self._pipe[0])}
        child.process = subprocess.Popen(
            self._command, env=environment, pass_fds=[self._pipe[0]], stdin=subprocess.DEVNULL
        )
        child.started = time.monotonic()
        log.info("consumer %d is started (pid %d)", child.number, child.process.pid)

    def _end_all(self) -> None:
        """Stop all consumers gracefully, and wait; a second signal stops them at once."""
        running = [c.process for c in self._children if c.process is not None]
        for process in running:
            process.terminate()
        hurried = False
        while any(process.poll() is None for process in running):
            if self._signals > 1 and not hurried:
                hurried = True
                for process in running:
                    process.send_signal(signal.SIGINT)
            time.sleep(POLL_SECONDS / 2)
        for child in self._children:
            child.process, child.start_at = None, 0.0

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                child.process.wait()


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class StopWithParent(Extension):
    """In a consumer that a supervisor started: stop when the supervisor is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def on_start(self, run: RunState) -> None:
        """Watch the pipe that the supervisor holds open."""
        threading.Thread(
            target=self._watch, args=(run,), name="ackflow-worker-parent", daemon=True
        ).start()

    def _watch(self, run: RunState) -> None:
        with contextlib.suppress(OSError):
            os.read(self._descriptor, 1)
            run.interrupt("the supervisor is gone")


def stop_with_parent(worker: Worker) -> None:
    """Stop a worker when its supervisor is gone, if one has started this process."""
    descriptor = os.environ.pop(PARENT_PIPE, None)
    if descriptor is not None:
        worker.add(StopWithParent(int(descriptor)))


def _changes(folder: Path) -> Iterator[str | None]:
    """Yield a changed Python file below a folder, or None; for ever."""
    before = _times(folder)
    while True:
        now = _times(folder)
        changed = sorted(path for path, _ in before.items() ^ now.items())
        before = now
        yield changed[0] if changed else None


def _times(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except OSError:
                    continue
    return found
