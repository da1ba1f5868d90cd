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

from .. import Session, validate
from ..errors import NotFound, QueueNotFound
from . import masters
from .cancel import announce, cancelled
from .declaration import Pipeline
from .failing import Deaths
from .folders import made, possible
from .held import waiting
from .keeping import kept
from .loader import clients, left_out
from .recovery import PARENT, Back, Recovery
from .stages import STAGES, Settings, keep_width
from .standby import Standby, end_group
from .status import look, stuck

Told = Callable[[str], None]


def tell(line: str) -> None:
    """Print a line at once: who follows a run in a file waits for it."""
    print(line, flush=True)


class Run:
    """One run; `events` is what happened when, for a timeline."""

    def __init__(self, settings: Settings, told: Told = tell) -> None:
        self.settings = settings
        self.pipeline: Pipeline = settings.pipeline()
        self.clients = clients(Path(settings.data))
        masters.check(settings.master)
        self.out = possible(Path(settings.out).absolute())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.events: list[dict[str, Any]] = []
        self._told = told
        self._began = time.monotonic()
        self._finished: set[str] = set()
        self._deaths: dict[str, Deaths] = {}
        self._killed: dict[str, float] = {}
        self._back: list[Back] = []
        self._alarmed: set[tuple[str, str]] = set()
        self._published = False
        # On a cluster it would wait for the cores that the router has, or keep some from it.
        self._with_standby = settings.standby and masters.local(settings.master)
        if settings.db is None:
            made(self.out)
        self._q: Session = settings.session("pipeline")
        try:
            self.done()  # when no server answers, nothing is made
            made(self.out)
        except BaseException:
            self.close()
            raise
        self._recovery = Recovery(self._q, self.pipeline)
        self.standby = Standby(
            lambda line: self._spawn("standby", "0", self.out / "router.log", line),
            lambda moved: Deaths("standby", self.out / "router.log", moved, moved), self._told,
        )  # fmt: skip

    def close(self) -> None:
        self._q.close()

    def done(self) -> list[str]:
        """The clients whose answers are written."""
        return list(kept(self._q, self.pipeline, "done"))

    def run(self, each: Callable[["Run"], None] | None = None, alarm_after: float = 60.0) -> bool:
        """Run to the end; False when there was nothing to do. `each` is called every moment."""
        try:
            return self._run(each, alarm_after)
        finally:
            self.close()

    def _run(self, each: Callable[["Run"], None] | None, alarm_after: float) -> bool:
        keep_width(self._q, self.pipeline, self.settings, "workers", "shards", "rows")
        gone = cancelled(self._q, self.pipeline)
        if set(self.clients) <= {*self.done(), *gone}:
            self._tell_finished(gone)
            return False
        masters.ready(self.settings.master)
        announce(self._q, self.pipeline, self.clients)
        for told in left_out(Path(self.settings.data), self.pipeline):
            self._told(told)
        try:
            self._work(each, alarm_after)
            self._tell_recoveries()
            self._tell_dead()
        finally:
            self._write_events()
        return True

    def _work(self, each: Callable[["Run"], None] | None, alarm_after: float) -> None:
        try:
            for name in self._names():
                self._start(name)
            self._watch(each, alarm_after)
        finally:
            self._stop()

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
        self._killed[name] = self._recovery.now()
        self.processes[name].send_signal(signal.SIGKILL)

    def note(self, what: str, **more: Any) -> None:
        self.events.append({"at": round(time.monotonic() - self._began, 3), "what": what, **more})

    def progress(self) -> dict[str, int]:
        """Batches handled so far, by client and table."""
        return kept(self._q, self.pipeline, "handled")

    def held(self) -> int:
        """Ends of file that are delivered and not acknowledged."""
        return sum(one.ends for one in waiting(self._q, self.pipeline).values())

    def _names(self) -> list[str]:
        upstream = [f"worker-{number}" for number in range(self.settings.workers)]
        return [*upstream, "router", "aggregator", "finisher"]

    def _start(self, name: str) -> bool:
        """Start a stage; True when a process that was there already takes it on."""
        stage, _, number = name.partition("-")
        path = self.out / f"{name}.log"
        if name not in self._deaths:
            self._deaths[name] = Deaths(name, path, lambda: self._moved(stage), self._all_moved)
        self._deaths[name].started()
        standby = self.standby.take_over() if name == "router" else None
        self.processes[name] = standby or self._spawn(stage, number or "0", path)
        self.note("start", stage=name)
        return standby is not None

    def _spawn(
        self, stage: str, number: str, path: Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ackflow.pipeline", stage, number]
        environment = {
            **os.environ,
            "ACKFLOW_PIPELINE": msgspec.json.encode(self.settings).decode(),
            PARENT: str(os.getpid()),
        }
        with path.open("ab") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=stdin, process_group=0
            )

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
                seen, self._published = now, True
            for client in set(self.done()) - self._finished:
                self._finished.add(client)
                self.note("done", client=client)
                self._told(f"{client}: finished after {time.monotonic() - self._began:.1f} s")
            self._recovered()
            self._tend_standby()
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
            self._deaths[name].died(code)
            end_group(process)
            self.note("restart", stage=name)
            self._recovery.died(name, process.pid, self._killed.pop(name, self._recovery.now()))
            how = "its standby takes over" if self._start(name) else "is started again"
            self._told(f"{name} died ({code}) and {how}")

    def _tend_standby(self) -> None:
        """Keep a standby while the router is at work: warming one up must not hold it up."""
        pid = self.processes["router"].pid
        if self._with_standby and self._published and self._recovery.at_work("router", pid):
            self.standby.tend()

    def _moved(self, stage: str) -> object:
        """How far a stage is: numbers that change when it gets something done."""
        match stage:
            case "router":
                return self.progress(), self.held()
            case "aggregator":
                return kept(self._q, self.pipeline, "shard")
            case "finisher":
                return self.done()
        try:
            inbox = self._q.queue_stats(self.pipeline.inbox)
        except QueueNotFound:
            return None
        return inbox.messages, [group.consumed for group in inbox.groups]

    def _all_moved(self) -> object:
        return [self._moved(stage) for stage in ("worker", *STAGES)]

    def _recovered(self) -> None:
        for back in self._recovery.back({name: p.pid for name, p in self.processes.items()}):
            self._back.append(back)
            self._told(str(back))
            seconds = round(back.seconds, 1)
            self.note("recovered", stage=back.stage, seconds=seconds, held=back.held)

    def _tell_recoveries(self) -> None:
        if self._back:
            worst = max(self._back, key=lambda back: back.seconds)
            times = "once" if len(self._back) == 1 else f"{len(self._back)} times"
            self._told(f"recovered {times}, {worst.stage} slowest: {worst.seconds:.1f} s")

    def _tell_dead(self) -> None:
        """Say what could not be read: nobody looks for it who does not know."""
        ours = (self.pipeline.inbox, self.pipeline.bad)
        for queue, n in [(queue.name, queue.dead_letters) for queue in self._q.queues()]:
            if n and queue in ours:
                letters = "dead letter" if n == 1 else "dead letters"
                self._told(f"not all could be read: {n} {letters} in {queue}; see them by "
                           f"ackflow dlq list {queue} --url {validate.shown(self.settings.url)}")  # fmt: skip

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
        ending = self.standby.stop()
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in [*self.processes.values(), *ending]:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _write_events(self) -> None:
        path = self.out / "timeline.json"
        path.write_text(json.dumps(self.events, indent=1) + "\n", encoding="utf-8")
