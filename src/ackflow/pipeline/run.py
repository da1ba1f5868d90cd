"""Running a whole pipeline on one machine: every stage a process, started again when it dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from .. import Session
from ..errors import AckflowError, InvalidArgument, NotFound
from .cancelling import cancelled
from .declare import Pipeline
from .ends import waiting
from .folders import made
from .stages import PARENT, Settings
from .status import look, stuck
from .upstream import clients, left_out

Told = Callable[[str], None]


class Failed(AckflowError):
    """A stage of the pipeline keeps failing; its log says why."""

    code = "pipeline_failed"


class Run:
    """One run; `events` is what happened when, for a timeline."""

    def __init__(self, settings: Settings, told: Told = print) -> None:
        self.settings = settings
        self.pipeline: Pipeline = settings.pipeline()
        self.clients = clients(Path(settings.data))
        self.out = made(Path(settings.out).absolute())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.events: list[dict[str, Any]] = []
        self._told = told
        self._began = time.time()
        self._finished: set[str] = set()
        self._failures: dict[str, int] = {}
        self._down: dict[str, float] = {}
        self._alarmed: set[tuple[str, str]] = set()
        self._q: Session = settings.session("pipeline")

    def done(self) -> list[str]:
        """The clients whose answers are written."""
        prefix = self.pipeline.value("done", "")
        return [v.key.removeprefix(prefix) for v in self._q.values(prefix)]

    def run(self, each: Callable[["Run"], None] | None = None, alarm_after: float = 60.0) -> bool:
        """Run to the end; False when there was nothing to do. `each` is called every moment."""
        self._keep()
        gone = cancelled(self._q, self.pipeline)
        if set(self.clients) <= {*self.done(), *gone}:
            self._tell_finished(gone)
            return False
        for told in left_out(Path(self.settings.data), self.pipeline):
            self._told(told)
        try:
            for name in self._names():
                self._start(name)
            self._watch(each, alarm_after)
        finally:
            self._stop()
            self._write_events()
        return True

    def _keep(self) -> None:
        """Refuse to go on in another width: batches are numbered and shards counted by it."""
        now = {name: getattr(self.settings, name) for name in ("workers", "shards", "rows")}
        key = self.pipeline.value("width")
        kept = self._q.value(key)
        if kept is None:
            t = self._q.transaction()
            t.put(key, now)
            t.commit()
        elif kept.data != now:
            used = ", ".join(f"{n} {name}" for name, n in kept.data.items())
            self._q.close()
            raise InvalidArgument(f"this run began with {used}; go on with these, or begin anew "
                                  "with another out folder and database")  # fmt: skip

    def _tell_finished(self, gone: set[str]) -> None:
        finished = [client for client in self.clients if client not in gone]
        paths = [self.out / client / f"{query.name}_results.json"
                 for client in finished for query in self.pipeline.queries]  # fmt: skip
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            raise NotFound(f"every client is finished, but {', '.join(missing)} is missing; "
                           "begin anew with another out folder and database")  # fmt: skip
        self._told("every client is finished already; the answers are in " + str(self.out))
        if given_up := sorted(gone & set(self.clients)):
            self._told(f"cancelled, and without answers: {', '.join(given_up)}")

    def kill(self, name: str) -> None:
        """Kill a stage; it is started again."""
        self.note("kill", stage=name)
        self._down.setdefault(name, time.time())
        self.processes[name].send_signal(signal.SIGKILL)

    def note(self, what: str, **more: Any) -> None:
        self.events.append({"at": round(time.time() - self._began, 3), "what": what, **more})

    def progress(self) -> dict[str, int]:
        """Batches handled so far, by client and table."""
        prefix = self.pipeline.value("handled", "")
        return {v.key.removeprefix(prefix): int(v.data) for v in self._q.values(prefix)}

    def held(self) -> int:
        """Ends of file that are delivered and not acknowledged."""
        return sum(one.ends for one in waiting(self._q, self.pipeline).values())

    def _names(self) -> list[str]:
        upstream = [f"worker-{number}" for number in range(self.settings.workers)]
        return [*upstream, "router", "aggregator", "finisher"]

    def _start(self, name: str) -> None:
        stage, _, number = name.partition("-")
        command = [sys.executable, "-m", "ackflow.pipeline", stage, number or "0"]
        environment = {
            **os.environ,
            "ACKFLOW_PIPELINE": msgspec.json.encode(self.settings).decode(),
            PARENT: str(os.getpid()),
        }
        with (self.out / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.note("start", stage=name)

    def _watch(self, each: Callable[["Run"], None] | None, alarm_after: float) -> None:
        seen, held = self.progress(), 0
        looked = 0.0
        while set(self.clients) - self._finished - cancelled(self._q, self.pipeline):
            self._revive()
            now, before = self.progress(), held
            held = self.held()
            if now != seen or held != before:
                self.note("progress", handled=sum(now.values()), held=held)
            if now != seen:
                self._tell(seen, now)
                seen = now
                self._recovered()
            for client in set(self.done()) - self._finished:
                self._finished.add(client)
                self.note("done", client=client)
                self._told(f"{client}: finished after {time.time() - self._began:.1f} s")
                self._recovered()
            if time.monotonic() - looked > 5:
                self._alarm(alarm_after)
                looked = time.monotonic()
            if each is not None:
                each(self)
            time.sleep(0.1)

    def _revive(self) -> None:
        """Start again what died; a worker that has sent everything is done."""
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code is None or (code == 0 and name.startswith("worker")):
                continue
            self._failures[name] = self._failures.get(name, 0) + (code > 0)
            if self._failures[name] > 5:
                raise Failed(f"{name} failed again and again; see {self.out / name}.log")
            self._told(f"{name} died ({code}) and is started again")
            self.note("restart", stage=name)
            self._down.setdefault(name, time.time())
            self._start(name)

    def _recovered(self) -> None:
        """What was down works again: something moved since it was started anew."""
        for name, since in list(self._down.items()):
            if self.processes[name].poll() in (None, 0):
                took = time.time() - since
                self._told(f"{name}: recovered {took:.1f} s after its death")
                self.note("recovered", stage=name, seconds=round(took, 1))
                del self._down[name]

    def _alarm(self, after: float) -> None:
        for row in stuck(look(self._q, self.pipeline, after)):
            if (row.client, row.table) not in self._alarmed:
                self._alarmed.add((row.client, row.table))
                self._told(
                    f"ALARM: {row.held} ends of {row.client}/{row.table} are not acknowledged for "
                    f"{row.oldest_seconds:.0f} s"
                )
                self.note("alarm", client=row.client, table=row.table)

    def _tell(self, before: dict[str, int], now: dict[str, int]) -> None:
        for key, n in now.items():
            if n != before.get(key):
                self._told(f"{key}: {n} {'batch' if n == 1 else 'batches'}")

    def _stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._q.close()

    def _write_events(self) -> None:
        path = self.out / "timeline.json"
        path.write_text(json.dumps(self.events, indent=1) + "\n", encoding="utf-8")
