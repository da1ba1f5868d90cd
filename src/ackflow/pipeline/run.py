"""Runs a whole pipeline: loaders and the Spark application are processes, restarted when they die."""

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
from . import preflight
from .declaration import Pipeline
from .loader import clients, file_warnings, fix_files
from .progress import Progress
from .stages import Settings, check_sizes
from .state import (
    Handled,
    TableKey,
    accept,
    cancelled_clients,
    handled_tables,
    held_ends,
    read_state,
    record_recovery,
    stuck,
    table_statuses,
)
from .supervisor import (
    PARENT,
    PipelineFailed,
    Recovered,
    RecoveryTracker,
    RestartPolicy,
    Standby,
    kill_group,
)

ALARM_INTERVAL = 5.0
STANDBY_AFTER = 20.0  # seconds of work; a run that ends sooner needs no standby
EachPoll = Callable[["Run"], None]


def print_line(line: str) -> None:
    """Print a line and flush, so that a log file of the run is up to date."""
    print(line, flush=True)


class Run:
    """One run of a pipeline; `events` is its timeline."""

    def __init__(self, settings: Settings, report: Callable[[str], None] = print_line) -> None:
        self.settings = settings
        self.pipeline: Pipeline = settings.pipeline()
        self.clients = clients(Path(settings.data))
        preflight.check_master(settings.master)
        self.out = preflight.check_folder(Path(settings.out).absolute())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.events: list[dict[str, Any]] = []
        self._report = report
        self._began = time.monotonic()
        self._finished: set[str] = set()
        self._restarts: dict[str, RestartPolicy] = {}
        self._killed: dict[str, float] = {}
        self._recoveries: list[Recovered] = []
        self._alarmed: set[tuple[str, str]] = set()
        self._published_at: float | None = None
        self._ui = False
        self.files: dict[str, dict[str, dict[str, int]]] = {}
        # On a cluster a standby takes a core of its own, so that the user decides.
        self._with_standby = (
            preflight.is_local(settings.master) if settings.standby is None else settings.standby
        )
        if settings.db is None:
            preflight.make_folder(self.out)
        self._q: Session = settings.session("pipeline")
        try:
            self.done()  # fails before the folder is created if no server answers
            preflight.make_folder(self.out)
        except BaseException:
            self.close()
            raise
        self._recovery = RecoveryTracker(self._q, self.pipeline)
        log = self.out / "spark.log"
        self.standby = Standby(
            lambda stdin: self._spawn("standby", "0", log, stdin),
            lambda progress: RestartPolicy("standby", log, progress, progress), self._report,
        )  # fmt: skip

    def close(self) -> None:
        self._q.close()

    def done(self) -> list[str]:
        """Return the clients whose answers are written."""
        return list(read_state(self._q, self.pipeline, "done"))

    def run(self, each: EachPoll | None = None, alarm_after: float = 60.0) -> bool:
        """Run to the end; return False if every client was finished. `each` is called per poll."""
        try:
            return self._run(each, alarm_after)
        finally:
            self.close()

    def _run(self, each: EachPoll | None, alarm_after: float) -> bool:
        check_sizes(self._q, self.pipeline, self.settings, "workers", "parts", "block_bytes")
        if self._is_finished():
            return False
        preflight.check_spark(self.settings.master)
        data = Path(self.settings.data)
        self.files = fix_files(self._q, self.pipeline, data)
        self.clients = [client for client in self.clients if client in self.files]
        for warning in file_warnings(data, self.pipeline, self.files):
            self._report(warning)
        if self._is_finished():  # what is new came after the run began
            return False
        try:
            self._work(each, alarm_after)
            self._report_recoveries()
            self._report_dead_letters()
        finally:
            self._write_events()
        self._check_failed()
        return True

    def _work(self, each: EachPoll | None, alarm_after: float) -> None:
        try:
            for name in self._names():
                self._start(name)
            self._watch(each, alarm_after)
        finally:
            self._stop()

    def _check_failed(self) -> None:
        """Raise if a query failed for what is in the rows of a client."""
        done = read_state(self._q, self.pipeline, "done")
        failed = [f"{client}: {why}" for client, why in sorted(done.items()) if why is not True]
        if failed:
            raise PipelineFailed("; ".join(failed))

    def _is_finished(self) -> bool:
        """Return whether every client is finished or cancelled; report it then."""
        cancelled = cancelled_clients(self._q, self.pipeline)
        if not set(self.clients) <= {*self.done(), *cancelled}:
            return False
        self._report_finished(cancelled)
        return True

    def _report_finished(self, cancelled: set[str]) -> None:
        self._check_failed()
        finished = [client for client in self.clients if client not in cancelled]
        paths = [self.out / client / f"{query.name}_results.{self.settings.results}"
                 for client in finished for query in self.pipeline.queries]  # fmt: skip
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            raise NotFound(f"every client is finished, but {', '.join(missing)} is missing; "
                           "start over with another out folder and database")  # fmt: skip
        self._report(f"every client is already finished; the answers are in {self.out}")
        if without := sorted(cancelled & set(self.clients)):
            self._report(f"cancelled, without answers: {', '.join(without)}")

    def accept(self, client: str) -> None:
        """Answer a client although more blocks arrived than its end-of-file messages announce."""
        accept(self._q, self.pipeline, client)

    def kill(self, name: str) -> None:
        """Kill a stage with SIGKILL; the run restarts it."""
        self.note("kill", stage=name)
        self._killed[name] = self._recovery.now()
        self.processes[name].send_signal(signal.SIGKILL)

    def note(self, what: str, **more: Any) -> None:
        """Add an event to the timeline."""
        self.events.append({"at": round(time.monotonic() - self._began, 3), "what": what, **more})

    def progress(self) -> dict[str, int]:
        """Return the number of handled blocks by `client/table`."""
        return {f"{k.client}/{k.table}": h.blocks for k, h in self.handled().items()}

    def handled(self) -> dict[TableKey, Handled]:
        """Return what is folded of every table."""
        return handled_tables(self._q, self.pipeline)

    def held(self) -> int:
        """Return the number of delivered and unacknowledged end-of-file messages."""
        return sum(table.ends for table in held_ends(self._q, self.pipeline).values())

    def _names(self) -> list[str]:
        upstream = [f"worker-{number}" for number in range(self.settings.workers)]
        return ["spark", *upstream]  # Spark starts while the loaders load

    def _start(self, name: str) -> bool:
        """Start a stage; return True if the standby took over instead."""
        stage, _, number = name.partition("-")
        path = self.out / f"{name}.log"
        if name not in self._restarts:
            self._restarts[name] = RestartPolicy(
                name, path, lambda: self._stage_progress(stage), self._overall_progress
            )
        self._restarts[name].started()
        standby = self.standby.take_over() if name == "spark" else None
        self.processes[name] = standby or self._spawn(stage, number or "0", path)
        self.note("start", stage=name)
        return standby is not None

    def _spawn(
        self, stage: str, number: str, path: Path, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ackflow.pipeline.stages", stage, number]
        environment = {
            **os.environ,
            "ACKFLOW_PIPELINE": msgspec.json.encode(self.settings).decode(),
            PARENT: str(os.getpid()),
        }
        with path.open("ab") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=stdin, process_group=0
            )

    def _watch(self, each: EachPoll | None, alarm_after: float) -> None:
        seen, held = self.progress(), 0
        alarms_checked = 0.0
        with Progress(self._report, self.files) as shown:
            while set(self.clients) - self._finished - cancelled_clients(self._q, self.pipeline):
                self._restart_dead()
                self._report_ui()
                handled, before = self.handled(), held
                now = {f"{k.client}/{k.table}": h.blocks for k, h in handled.items()}
                held = self.held()
                if now != seen or held != before:
                    self.note("progress", handled=sum(now.values()), held=held)
                if now != seen:
                    seen = now
                    self._published_at = self._published_at or time.monotonic()
                shown.update(handled, held_ends(self._q, self.pipeline), len(self._recoveries))
                for client in set(self.done()) - self._finished:
                    self._finished.add(client)
                    self.note("done", client=client)
                    self._report(f"{client}: finished after {time.monotonic() - self._began:.1f} s")
                self._note_recovered()
                self._poll_standby()
                if time.monotonic() - alarms_checked > ALARM_INTERVAL:
                    self._check_alarms(alarm_after)
                    alarms_checked = time.monotonic()
                if each is not None:
                    each(self)
                time.sleep(0.1)

    def _report_ui(self) -> None:
        """Report once where Spark shows its own pages."""
        if not self._ui and (value := self._q.value(self.pipeline.state_key("ui"))) is not None:
            self._ui = True
            if value.data:
                self._report(f"Spark's own pages are at {value.data}")

    def _restart_dead(self) -> None:
        """Restart stages that died; a worker that exits with 0 has sent everything."""
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code is None or (code == 0 and name.startswith("worker")):
                continue
            self._restarts[name].exited(code)
            kill_group(process)
            self.note("restart", stage=name)
            self._recovery.died(name, self._killed.pop(name, self._recovery.now()))
            how = "its standby takes over" if self._start(name) else "it is restarted"
            self._report(f"{name} exited with {code}; {how}")

    def _poll_standby(self) -> None:
        """Keep a standby while the application works, so that its start does not delay that."""
        if not self._with_standby or self._published_at is None:
            return
        pid = self.processes["spark"].pid
        if time.monotonic() - self._published_at > STANDBY_AFTER and self._recovery.at_work(
            "spark", pid
        ):
            self.standby.poll()

    def _stage_progress(self, stage: str) -> object:
        """Return values that change when a stage makes progress."""
        if stage == "spark":
            return self.progress(), self.held(), self.done()
        try:
            inbox = self._q.queue_stats(self.pipeline.inbox)
        except QueueNotFound:
            return None
        return inbox.messages, [group.consumed for group in inbox.groups]

    def _overall_progress(self) -> object:
        return [self._stage_progress(stage) for stage in ("worker", "spark")]

    def _note_recovered(self) -> None:
        pids = {name: process.pid for name, process in self.processes.items()}
        for recovered in self._recovery.recovered(pids):
            self._recoveries.append(recovered)
            self._report(str(recovered))
            seconds = round(recovered.seconds, 1)
            self.note("recovered", stage=recovered.stage, seconds=seconds, held=recovered.held)
            record_recovery(self._q, self.pipeline, recovered.stage, seconds, recovered.held)

    def _report_recoveries(self) -> None:
        if self._recoveries:
            slowest = max(self._recoveries, key=lambda recovered: recovered.seconds)
            n = len(self._recoveries)
            times = "once" if n == 1 else f"{n} times"
            self._report(f"recovered {times}; slowest: {slowest.stage}, {slowest.seconds:.1f} s")

    def _report_dead_letters(self) -> None:
        """Report rows and messages that could not be read."""
        for queue in self._q.queues():
            n = queue.dead_letters
            if n and queue.name in (self.pipeline.inbox, self.pipeline.bad):
                letters = "dead letter" if n == 1 else "dead letters"
                self._report(f"some input could not be read: {n} {letters} in {queue.name}; list: "
                             f"ackflow dlq list {queue.name} --url {validate.redact_url(self.settings.url)}")  # fmt: skip

    def _check_alarms(self, after: float) -> None:
        for row in stuck(table_statuses(self._q, self.pipeline, after)):
            if (row.client, row.table) not in self._alarmed:
                self._alarmed.add((row.client, row.table))
                where = f"{row.client}/{row.table}"
                if row.surplus is None:
                    self._report(f"ALARM: {row.held} end-of-file messages of {where} "
                                 f"unacknowledged for {row.oldest_seconds:.0f} s")  # fmt: skip
                else:
                    self._report(
                        f"ALARM: {where} has more blocks than its end-of-file messages announce: "
                        f"{row.surplus}; drop the client with `ackflow pipeline cancel "
                        f"{row.client}`, or answer with all of them: `ackflow pipeline cancel "
                        f"{row.client} --accept`"
                    )
                self.note("alarm", client=row.client, table=row.table)

    def _stop(self) -> None:
        stopping = self.standby.stop()
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in [*self.processes.values(), *stopping]:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _write_events(self) -> None:
        path = self.out / "timeline.json"
        path.write_text(json.dumps(self.events, indent=1) + "\n", encoding="utf-8")
