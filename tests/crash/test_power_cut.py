"""The power fails at a random moment: which messages must survive, and which must not come back.

Every message has one place: absent, ready (delivered again), done, dead or moved (to another queue,
by a transaction). The ledger records the places in which each message may be after a power cut; the
disk is then opened with the default VFS and drained to find where each message is.

Here one process fails during its work and continues with the surviving files. Several processes
that write concurrently, with their checkpoint threads, are in test_traced_power_cut.py.
"""

import contextlib
import gc
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import apsw
import pytest
from power import Disk, DiskFile, DiskVFS, PowerCut

import ackflow
from ackflow import Message, Session, VirtualClock
from ackflow.broker.broker import Broker
from ackflow.errors import AckflowError, OutcomeUnknown
from ackflow.store.sqlite.store import MayLose, SqliteStore

NAME = "queue.db"
GROUP = "g"
CUTS_PER_DISK = 10
LATER = 10_000.0
MOMENTS = {
    "while opening",
    "while working",
    "between operations",
    "while closing",
    "after closing",
}

# The garbage collector closes a connection that was being opened when the power failed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def vfs() -> Iterator[DiskVFS]:
    made = DiskVFS("ackflow-power")
    yield made
    gc.collect()
    made.unregister()


class Ledger:
    """The possible places of every pushed message, if the power failed now."""

    def __init__(self, promise: MayLose) -> None:
        self._keeps_plain = promise == "nothing"
        self._keeps_synced = promise in ("nothing", "acks")
        self.places: dict[str, set[str]] = {}
        self._next = 0

    def names(self, count: int) -> list[str]:
        self._next += count
        return [f"m{n}" for n in range(self._next - count, self._next)]

    @contextlib.contextmanager
    def moving(self, names: list[str], to: str, synced: bool) -> Iterator[None]:
        """An operation that moves messages to a place; if interrupted, it may or may not have."""
        before = {name: self.places.get(name, {"absent"}) for name in names}
        for name in names:
            self.places[name] = before[name] | {to}
        yield
        for name in names:
            if self._keeps_synced if synced else self._keeps_plain:
                self.places[name] = {to}

    def wrong(self, seen: dict[str, str]) -> list[str]:
        return [
            f"{name} is {seen.get(name, 'absent')} and may be {' or '.join(sorted(allowed))}"
            for name, allowed in self.places.items()
            if seen.get(name, "absent") not in allowed
        ]

    def learn(self, seen: dict[str, str]) -> None:
        """After a power cut the content of the disk is certain."""
        self.places = {n: {seen[n]} for n in self.places if n in seen}


class Consumer:
    """Random work on a session, recorded in the ledger."""

    def __init__(self, session: Session, ledger: Ledger, chance: Random) -> None:
        self._q = session
        self._ledger = ledger
        self._chance = chance
        self._held: list[Message] = []

    def work(self) -> None:
        verbs: list[tuple[int, Callable[[], None]]] = [
            (30, self._push),
            (20, self._pop),
            (12, self._ack),
            (12, self._confirm),
            (12, self._move),
            (4, self._fail),
            (3, self._reject),
            (3, self._requeue),
            (4, self._checkpoint),
            (4, self._churn),
        ]
        (verb,) = self._chance.choices([v for _, v in verbs], [weight for weight, _ in verbs])
        verb()

    def _push(self) -> None:
        names = self._ledger.names(self._chance.randint(1, 4))
        filler = "x" * self._chance.choice((0, 0, 10, 3_000, 30_000))
        with self._ledger.moving(names, "ready", synced=True):
            self._q.push("jobs", [{"name": name, "filler": filler} for name in names])

    def _pop(self) -> None:
        self._held += self._q.pop("jobs", group=GROUP, batch=self._chance.randint(1, 4))

    def _take(self) -> list[Message]:
        count = self._chance.randint(1, 3)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _ack(self) -> None:
        for message in self._take():
            with self._ledger.moving([message.data["name"]], "done", synced=False):
                message.ack()

    def _confirm(self) -> None:
        taken = self._take()
        with self._ledger.moving([m.data["name"] for m in taken], "done", synced=True):
            assert not self._q.ack(taken, confirm=True).refused

    def _move(self) -> None:
        for message in self._take():
            name = message.data["name"]
            count = self._q.value("moved")
            with (
                self._ledger.moving([name], "moved", synced=True),
                self._q.transaction() as t,
            ):
                t.ack(message).push("out", {"name": name})
                t.put("moved", count.data + 1 if count else 1, expect=count.version if count else 0)

    def _fail(self) -> None:
        for message in self._take():
            last = message.failures + 1 >= 2
            with self._ledger.moving(
                [message.data["name"]], "dead" if last else "ready", synced=False
            ):
                message.nack("failed")

    def _reject(self) -> None:
        for message in self._take():
            with self._ledger.moving([message.data["name"]], "dead", synced=True):
                message.reject("unwanted")

    def _requeue(self) -> None:
        for message in self._take():
            with self._ledger.moving([message.data["name"]], "ready", synced=True):
                message.requeue()

    def _checkpoint(self) -> None:
        store = self._q._broker.store
        assert isinstance(store, SqliteStore)
        mode = self._chance.choice(
            (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        )
        store._db.wal_checkpoint(mode=mode)

    def _churn(self) -> None:
        """Free pages and reuse them, so that the file is not only appended to."""
        self._q.push("scratch", ["y" * 9_000] * 3)
        self._q.pop("scratch", batch=3, auto_ack=True)
        self._q.upkeep()


class Campaign:
    """A series of power cuts, some of them on the same disk, and the guarantee to check."""

    def __init__(
        self, vfs: DiskVFS, folder: Path, may_lose: MayLose, promise: MayLose, seed: int
    ) -> None:
        self._vfs = vfs
        self._folder = folder
        self._may_lose = may_lose
        self._promise = promise
        self._chance = Random(seed)
        self._seed = seed
        self.moments: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.broken: list[str] = []

    def run(self, cuts: int) -> "Campaign":
        for number in range(cuts):
            if number % CUTS_PER_DISK == 0:
                self._plug_in_a_new_disk()
            problems = self._one_cut()
            if problems:
                self.broken += [f"seed {self._seed}, cut {number}: {p}" for p in problems]
                self._plug_in_a_new_disk()
        return self

    def _plug_in_a_new_disk(self) -> None:
        self._vfs.disk = Disk()
        self._clock = VirtualClock()
        self._ledger = Ledger(self._promise)

    def _one_cut(self) -> list[str]:
        disk = self._vfs.disk
        if self._chance.random() < 0.7:
            disk.fail_after(self._chance.randint(1, self._chance.choice((25, 300))))
        problems = self._work_until_it_fails(disk)
        self._clock.advance(self._chance.choice((20, 1_000)))
        return problems or self._judge(self._vfs.disk)

    def _work_until_it_fails(self, disk: Disk) -> list[str]:
        """Work until the power fails, or is cut between two operations."""
        session, moment = None, "while opening"
        try:
            session = self._open()
            moment = "while working"
            consumer = Consumer(session, self._ledger, self._chance)
            for _ in range(self._chance.randint(5, 30)):
                consumer.work()
            moment = "between operations"
            if self._chance.random() < 0.3:
                moment = "while closing"
                disk.fail_after(self._chance.choice((self._chance.randint(1, 40), 10_000)))
                session.close()
                moment = "after closing"
        except Exception as error:
            if disk.on or not isinstance(error, AckflowError | apsw.Error):
                return [f"{moment} not because of a cut: {error!r}"]
        finally:
            self._vfs.disk = disk.cut(self._chance)
            if session is not None:
                session.close()
        self.moments[moment] += 1
        return []

    def _open(self) -> Session:
        path = str(self._vfs.disk.folder / NAME)
        disk = self._vfs.disk

        def sync() -> None:
            try:
                DiskFile(disk, disk.files[f"{path}-wal"]).xSync(0)
            except PowerCut:
                raise OutcomeUnknown() from None

        store = SqliteStore(path, self._clock, self._may_lose, vfs=self._vfs.name, sync=sync)
        with_an_end(store)
        session = Session(Broker(store, self._clock, upkeep=False))
        if not session.queues():
            session.configure("jobs", max_deliver=None, retry_limit=2)
            session.configure("scratch", keep_seconds=0)
        return session

    def _judge(self, disk: Disk) -> list[str]:
        folder = self._folder / "after"
        folder.mkdir()
        try:
            disk.export(folder)
            seen, problems = look(folder / NAME, self._clock.now() / 1e6 + LATER)
        except Exception as error:
            return [f"the database cannot be read: {error!r}"]
        finally:
            shutil.rmtree(folder)
        problems += self._ledger.wrong(seen)
        self.places.update(seen.values())
        self._ledger.learn(seen)
        return problems


def with_an_end(store: SqliteStore) -> SqliteStore:
    """Fail a session that does not end, as may happen with a file of random parts."""
    left = iter(range(5_000))
    store._db.set_progress_handler(lambda: next(left, None) is None, 1_000)
    return store


def look(path: Path, now: float) -> tuple[dict[str, str], list[str]]:
    """Return the place of every message, read with the default VFS, and errors of the file."""
    problems: list[str] = []
    clock = VirtualClock(now)
    store = with_an_end(SqliteStore(str(path), clock))
    store._db.pragma("synchronous", "off")
    with Session(Broker(store, clock, upkeep=False)) as q:
        found = store._db.pragma("integrity_check")
        if found != "ok":
            return {}, [f"integrity check: {found}"]
        ready, stored = drain(q, "jobs", GROUP), drain(q, "jobs", "audit")
        moved = drain(q, "out", "reader")
        dead = [letter.data["name"] for letter in q.dead_letters("jobs", limit=10_000).items]
        counted = q.value("moved")
    if (counted.data if counted else 0) != len(moved):
        problems.append(f"{len(moved)} moved, but the transactions counted {counted}")
    for name, times in Counter(ready + moved + dead).items():
        if times > 1:
            problems.append(f"{name} is in {times} places")
    places = dict.fromkeys(stored, "done")
    for place, names in (("ready", ready), ("moved", moved), ("dead", dead)):
        places.update(dict.fromkeys(names, place))
    return places, problems


def drain(q: Session, queue: str, group: str) -> list[str]:
    names = []
    while batch := q.pop(queue, group=group, batch=1_000):
        names += [message.data["name"] for message in batch]
        q.ack(batch)
    return names


def test_a_power_cut_loses_no_confirmed_push_ack_or_transaction(
    vfs: DiskVFS, tmp_path: Path
) -> None:
    campaign = Campaign(vfs, tmp_path, "acks", "acks", 0).run(250)
    assert campaign.broken == []
    assert set(campaign.moments) == MOMENTS
    assert set(campaign.places) == {"ready", "done", "moved", "dead"}


def test_a_power_cut_loses_not_even_plain_acks_when_nothing_may_be_lost(
    vfs: DiskVFS, tmp_path: Path
) -> None:
    campaign = Campaign(vfs, tmp_path, "nothing", "nothing", 0).run(250)
    assert campaign.broken == []
    assert set(campaign.moments) == MOMENTS


@pytest.mark.outer
def test_a_power_cut_that_may_lose_recent_work_still_leaves_a_whole_database(
    vfs: DiskVFS, tmp_path: Path
) -> None:
    campaign = Campaign(vfs, tmp_path, "recent", "recent", 0).run(250)
    assert campaign.broken == []
    assert set(campaign.moments) == MOMENTS


@pytest.mark.outer
@pytest.mark.parametrize(
    ("may_lose", "promise", "found"),
    [
        ("acks", "nothing", "is ready and may be done"),
        ("recent", "acks", "is absent and may be ready"),
        ("everything", "acks", "is absent and may be ready"),
        ("everything", "recent", "integrity check|cannot be read|not because of a cut"),
    ],
)
def test_the_harness_notices_a_store_that_syncs_less_than_it_promises(
    vfs: DiskVFS, tmp_path: Path, may_lose: MayLose, promise: MayLose, found: str
) -> None:
    campaign = Campaign(vfs, tmp_path, may_lose, promise, 0)
    assert any(re.search(found, problem) for _ in range(10) for problem in campaign.run(100).broken)


class FailingSync:
    """Syncs the WAL. A failed sync drops the unsynced writes, as operating systems do: the next
    sync has nothing to write and succeeds."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._log = disk.files, path + "-wal"
        self.fails = False

    def __call__(self) -> None:
        files, name = self._log
        if self.fails:
            files[name].unsynced.clear()
            raise OutcomeUnknown()
        files[name].sync()


def test_what_is_confirmed_after_a_sync_that_failed_outlives_a_power_cut(
    vfs: DiskVFS, tmp_path: Path
) -> None:
    vfs.disk = Disk()
    path, clock = str(vfs.disk.folder / NAME), VirtualClock()
    sync = FailingSync(vfs.disk, path)
    store = SqliteStore(path, clock, "acks", vfs=vfs.name, sync=sync)
    session = Session(Broker(store, clock, upkeep=False))
    session.push("jobs", "before")
    sync.fails = True
    with pytest.raises(OutcomeUnknown):
        session.push("jobs", "maybe")
    sync.fails = False
    session.push("jobs", "sure")
    for name, platter in vfs.disk.files.items():
        (tmp_path / Path(name).name).write_bytes(platter.durable)
    session.close()
    with ackflow.connect(tmp_path / NAME, upkeep=False) as after:
        assert {"before", "sure"} <= {m.data for m in after.pop("jobs", batch=9)}


def test_a_commit_that_the_disk_does_not_confirm_is_an_unknown_outcome_when_nothing_may_be_lost(
    vfs: DiskVFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vfs.disk = Disk()
    path, clock = str(vfs.disk.folder / NAME), VirtualClock()
    session = Session(
        Broker(SqliteStore(path, clock, "nothing", vfs=vfs.name), clock, upkeep=False)
    )
    session.push("jobs", "before")
    with monkeypatch.context() as patch:
        patch.setattr(DiskFile, "xSync", refuse_sync)
        with pytest.raises(OutcomeUnknown, match="may be found when the file is opened again"):
            session.push("jobs", "maybe")
    for name, platter in vfs.disk.files.items():  # as the next process finds it
        (tmp_path / Path(name).name).write_bytes(platter.seen)
    session.push("jobs", "sure")
    assert [m.data for m in session.pop("jobs", batch=9)] == ["before", "sure"]
    session.close()
    with ackflow.connect(tmp_path / NAME, upkeep=False) as after:
        assert [m.data for m in after.pop("jobs", batch=9)] == ["before", "maybe"]


def refuse_sync(file: DiskFile, flags: int) -> None:
    raise PowerCut()


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("may_lose", ["nothing", "acks", "recent"])
def test_no_power_cut_of_ten_thousand_breaks_its_promise(
    vfs: DiskVFS, tmp_path: Path, may_lose: MayLose
) -> None:
    assert Campaign(vfs, tmp_path, may_lose, may_lose, 1_000).run(10_000).broken == []
