"""The power fails under several real processes with their checkpoint threads.

Their writes and syncs are traced (trace.c), and power cuts are replayed from it (replay.py).

Every message has one place after a power cut: absent, ready (delivered again), done, dead, or moved
to another queue by a transaction. The notes of the processes give the possible places of each.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import apsw
import pytest
from replay import DATASYNC, IGNORED, NOTE, OPEN, UNLINK, Disk, Record, Trace, read, reserve
from traced import GROUP
from traced_backup import MESSAGES

import ackflow
from ackflow import Session, VirtualClock, ids
from ackflow.broker.broker import Broker
from ackflow.store.durability import MayLose
from ackflow.store.sqlite.store import SqliteStore

NAME = "queue.db"
WORKERS = 4
STEPS = 130  # of each worker, twice: the WAL is checkpointed several times
SYNC_US = 1_500  # a power cut can affect operations that run during a sync
LATER = 10_000.0  # all leases have expired, and no message exceeds its retention
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # for files that are read once


# A run that two tests share is made once, by one of several test processes.
pytestmark = pytest.mark.xdist_group("traced power cuts")


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the tracing library with the C compiler of this machine."""
    if sys.platform != "linux":
        pytest.skip("the tracing library is loaded as Linux does it")
    if shutil.which("cc") is None:
        sentence = "power cuts are traced by a library that needs a C compiler (cc): make setup"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    library = tmp_path_factory.mktemp("tracer") / "trace.so"
    source = Path(__file__).with_name("trace.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


def environment(tracer: Path, folder: Path, logs: Path, sync_us: int) -> dict[str, str]:
    """Return the environment of a traced process."""
    return {
        **os.environ,
        "LD_PRELOAD": str(tracer),
        "TRACE_FOLDER": str(folder),
        "TRACE_LOGS": str(logs),
        "TRACE_SYNC_US": str(sync_us),
    }


class Run:
    """Processes that worked on a database, and the trace of their operations."""

    def __init__(
        self,
        tracer: Path,
        folder: Path,
        may_lose: MayLose,
        steps: int,
        seed: int,
        sync_us: int = SYNC_US,
    ) -> None:
        """`sync_us`: the longest duration of a sync, in microseconds."""
        self.may_lose = may_lose
        self._home = (folder / "data").resolve()
        self._logs = folder / "logs"
        self._home.mkdir()
        self._logs.mkdir()
        traced = environment(tracer, self._home, self._logs, sync_us)
        script = str(Path(__file__).with_name("traced.py"))
        self._workers = [
            subprocess.Popen(
                [sys.executable, script, str(self._home / NAME), f"w{number}", may_lose, str(steps),
                 str(seed * WORKERS + number)],
                env=traced, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(WORKERS)
        ]  # fmt: skip
        try:
            self._run()
        finally:
            for worker in self._workers:
                worker.kill()
                worker.communicate()
        shutil.rmtree(self._home)
        shutil.rmtree(self._logs)

    def _run(self) -> None:
        self._wait("open")
        self._go()
        self._wait("closed")  # the last process to close has deleted the WAL
        assert not (self._home / f"{NAME}-wal").exists()
        self._go()
        self._wait("open")
        with closing(apsw.Connection(str(self._home / NAME))) as guard:
            guard.execute("select count(*) from queues").fetchall()
            self._go()
            self._wait("closed")  # not this connection: the WAL is kept for the comparison
            for worker in self._workers:
                worker.communicate("")
                assert worker.returncode == 0
            self.trace = Trace(read(self._logs), self._home)
            self._compare()

    def _wait(self, expected: str) -> None:
        for worker in self._workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"{expected}\n"

    def _go(self) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()

    def _compare(self) -> None:
        """The trace is complete: a full replay produces the same files."""
        disk = Disk(self.trace)
        disk.advance(self.trace.last + 1)
        with TemporaryDirectory() as folder:
            disk.write(Path(folder), self.trace.last + 1, None)
            assert contents(Path(folder)) == contents(self._home)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(IGNORED)
    }


PLACES = {"push": "ready", "ack": "done", "confirm": "done", "move": "moved", "reject": "dead"}


class Ledger:
    """The possible places of every message and the ids seen, from the notes up to a moment."""

    def __init__(self, promise: MayLose) -> None:
        self._unsure = {"ack"} if promise == "acks" else set()
        self.places: dict[str, set[str]] = {}
        self.ids: dict[str, str] = {}  # id: message, as confirmed to the producer
        self.handed_out: dict[str, str] = {}

    def read(self, record: Record) -> None:
        verb, stage, names, *rest = record.note
        if verb == "pop":
            self.handed_out.update(zip(rest[0], names, strict=True))
        if verb not in PLACES:
            return
        to = PLACES[verb]
        for name in names:
            places = self.places.setdefault(name, {"absent"})
            if stage == "starts":
                places.add(to)
            elif verb == "push":
                places.discard("absent")  # it may have been popped and acked before
            elif verb not in self._unsure:
                self.places[name] = {to}
        if rest:
            self.ids.update(zip(rest[0], names, strict=True))


class Seen:
    """The content of the file after a power cut."""

    def __init__(self, path: Path, may_lose: MayLose) -> None:
        clock = VirtualClock(time.time() + LATER)
        store = SqliteStore(str(path), clock, may_lose)
        left = iter(range(20_000))  # a statement on a corrupt file may not end
        store._db.set_progress_handler(lambda: next(left, None) is None, 1_000)
        with Session(Broker(store, clock, upkeep=False)) as q:
            self.integrity = store._db.pragma("integrity_check")
            ready, self.stored = drain(q, "jobs", GROUP), drain(q, "jobs", "audit")
            moved = drain(q, "out", "reader")
            dead = [letter.data["name"] for letter in q.dead_letters("jobs", limit=10_000).items]
            self.new = {str(id) for p in "ab" for id in q.push("jobs", ["new"] * 9, partition=p)}
        self.places = dict.fromkeys((name for _, name in self.stored), "done")
        found = [*((name, "ready") for _, name in ready), *((name, "moved") for _, name in moved),
                 *((name, "dead") for name in dead)]  # fmt: skip
        self.places.update(found)
        times = Counter(name for name, _ in found)
        times.update(name for name, n in Counter(name for _, name in self.stored).items() if n > 1)
        self.twice = [name for name, n in times.items() if n > 1]

    def lost(self, ledger: Ledger) -> list[str]:
        """Return violated confirmations, and errors of the file."""
        problems = [] if self.integrity == "ok" else [f"integrity check: {self.integrity}"]
        problems += [f"{name} is there twice" for name in self.twice]
        problems += [
            f"{name} is {self.places.get(name, 'absent')} and may be {' or '.join(sorted(allowed))}"
            for name, allowed in ledger.places.items()
            if self.places.get(name, "absent") not in allowed
        ]
        stored = dict(self.stored)
        problems += [
            f"{id} is {stored.get(id)} and was {name}"
            for id, name in ledger.ids.items()
            if stored.get(id) != name
        ]
        return problems + self._out_of_order()

    def _out_of_order(self) -> list[str]:
        """Check that lanes are served in the order of their sequences, and that the messages of one
        process are in the order in which it pushed them."""
        problems = []
        last: dict[tuple[int, str], tuple[int, int]] = {}
        for id, name in self.stored:
            place, (worker, number) = ids.parse_message_id(id), name.split(".")
            here = place.sequence, int(number)
            before = last.get((place.lane, worker), (-1, -1))
            if not (before[0] < here[0] and before[1] < here[1]):
                problems.append(f"{name} is at {place} behind {before}")
            last[place.lane, worker] = here
        return problems

    def given_twice(self, ledger: Ledger) -> list[str]:
        """Return ids seen before the power cut that belong to other messages after it."""
        stored = dict(self.stored)
        return [
            f"{id} was {name} and is {'new' if id in self.new else stored[id]}"
            for id, name in ledger.handed_out.items()
            if id in self.new or stored.get(id, name) != name
        ]


def drain(q: Session, queue: str, group: str) -> list[tuple[str, str]]:
    """Return all messages that a group still receives, as (id, name)."""
    found = []
    while batch := q.pop(queue, group=group, batch=1_000, auto_ack=True):
        found += [(str(message.id), message.data["name"]) for message in batch]
    return found


class Cuts:
    """Power cuts of one run, and the errors found after them."""

    def __init__(
        self,
        run: Run,
        promise: MayLose,
        moments: list[int],
        chance: Random,
        unsynced: str | None = None,
    ) -> None:
        """Syncs of the file `unsynced` do nothing."""
        self.lost: list[str] = []
        self.given_twice: list[str] = []
        self.places: Counter[str] = Counter()
        self.with_losses = 0
        disk, ledger = Disk(run.trace, unsynced), Ledger(promise)
        notes = iter(run.trace.of_kind(NOTE))
        note = next(notes, None)
        for moment in moments:
            disk.advance(moment)
            while note is not None and note.end < moment:
                ledger.read(note)
                note = next(notes, None)
            self.with_losses += disk.unsynced() > 0
            self._cut(run, disk, ledger, moment, chance)

    def _cut(self, run: Run, disk: Disk, ledger: Ledger, moment: int, chance: Random) -> None:
        with TemporaryDirectory(dir=MEMORY) as folder:
            disk.write(Path(folder), moment, chance)
            reserve(Path(folder) / NAME)
            try:
                seen = Seen(Path(folder) / NAME, run.may_lose)
            except Exception as error:  # any error that a corrupt file causes
                self.lost.append(f"cut at {moment}: the file cannot be read: {error!r}")
                return
        self.places.update(seen.places.values())
        self.lost += [f"cut at {moment}: {problem}" for problem in seen.lost(ledger)]
        self.given_twice += [f"cut at {moment}: {p}" for p in seen.given_twice(ledger)]


def cut(run: Run, count: int, seed: int, promise: MayLose, unsynced: str | None = None) -> Cuts:
    """Cut the power at random moments."""
    chance = Random(seed)
    return Cuts(run, promise, run.trace.moments(count, chance), chance, unsynced)


@pytest.fixture(scope="module")
def run(tracer: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run in the default mode, during which the WAL is checkpointed several times."""
    return Run(tracer, tmp_path_factory.mktemp("run"), "acks", STEPS, 0)


def test_the_trace_has_copies_of_the_log_by_its_thread_and_logs_deleted_and_made_again(
    run: Run,
) -> None:
    opened = {record.handle: record.data.decode() for record in run.trace.of_kind(OPEN)}
    synced = Counter(Path(opened[record.handle]).name for record in run.trace.of_kind(DATASYNC))
    assert synced[NAME] >= 4  # each is the end of a checkpoint
    assert synced[f"{NAME}-wal"] > 100
    assert any(record.data.decode().endswith("-wal") for record in run.trace.of_kind(UNLINK))
    threads = [note.note[2] for note in run.trace.of_kind(NOTE) if note.note[0] == "threads"]
    assert any("ackflow-checkpoint" in names for names in threads)


def test_a_power_cut_under_several_processes_loses_nothing_that_was_confirmed(run: Run) -> None:
    cuts = cut(run, 150, 0, "acks")
    assert cuts.lost == []
    assert cuts.with_losses > 75
    assert set(cuts.places) == {"ready", "done", "moved", "dead"}


def test_a_power_cut_loses_not_even_plain_acks_of_several_processes_when_nothing_may_be_lost(
    tracer: Path, tmp_path: Path
) -> None:
    cuts = cut(Run(tracer, tmp_path, "nothing", STEPS // 2, 0), 50, 0, "nothing")
    assert cuts.lost == []
    assert cuts.with_losses > 10


def test_an_id_that_was_handed_out_before_a_power_cut_is_never_another_messages(
    tracer: Path, tmp_path: Path
) -> None:
    run = Run(tracer, tmp_path, "acks", STEPS // 4, 0, sync_us=20_000)
    pops = [note.end + 1 for note in run.trace.of_kind(NOTE) if note.note[0] == "pop"]
    chance = Random(0)
    moments = sorted(chance.sample(pops, min(40, len(pops))))
    assert len(moments) > 20
    assert Cuts(run, "acks", moments, chance).given_twice == []


@pytest.mark.outer
@pytest.mark.parametrize("may_lose", ["recent", "everything"])
def test_the_replay_finds_confirmed_pushes_lost_in_modes_that_may_lose_them(
    tracer: Path, tmp_path: Path, may_lose: MayLose
) -> None:
    cuts = cut(Run(tracer, tmp_path, may_lose, STEPS // 3, 0), 20, 0, "acks")
    assert any(problem.endswith("is absent and may be ready") for problem in cuts.lost)


@pytest.mark.outer
@pytest.mark.parametrize("name", [NAME, f"{NAME}-wal"])
def test_the_replay_finds_loss_when_the_syncs_of_one_file_do_nothing(run: Run, name: str) -> None:
    assert cut(run, 30, 0, "acks", unsynced=name).lost


def test_a_backup_is_under_its_name_and_whole_after_a_power_cut(
    tracer: Path, tmp_path: Path
) -> None:
    home, logs, chance = (tmp_path / "data").resolve(), tmp_path / "logs", Random(0)
    home.mkdir()
    logs.mkdir()
    script = str(Path(__file__).with_name("traced_backup.py"))
    subprocess.run(
        [sys.executable, script, str(home / NAME), str(home / "backup.db")],
        env=environment(tracer, home, logs, SYNC_US),
        check=True,
    )
    trace = Trace(read(logs), home)
    (note,) = trace.of_kind(NOTE)
    disk = Disk(trace)
    for moment in range(note.end + 1, note.end + 31, 3):
        disk.advance(moment)
        with TemporaryDirectory(dir=MEMORY) as folder:
            disk.write(Path(folder), moment, chance)
            copy = Path(folder) / "backup.db"
            assert copy.exists()
            reserve(copy)
            with ackflow.connect(copy, upkeep=False) as q:
                found = [message.data for message in q.pop("jobs", batch=100)]
            assert found == list(range(MESSAGES))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("may_lose", "cuts"), [("acks", 750), ("nothing", 250)])
@pytest.mark.parametrize("seed", range(1, 11))
def test_no_traced_power_cut_of_ten_thousand_breaks_its_promise(
    tracer: Path, tmp_path: Path, may_lose: MayLose, cuts: int, seed: int
) -> None:
    found = cut(Run(tracer, tmp_path, may_lose, STEPS, seed), cuts, seed, may_lose)
    assert found.lost + found.given_twice == []
