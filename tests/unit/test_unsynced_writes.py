"""Messages that are not on disk yet are not shown, so that no id is assigned twice; after a failed
sync every process on the file knows that the WAL is in doubt."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest
from tests.client.waiting import until

import ackflow
from ackflow import Session
from ackflow.broker.aio import LoopBroker
from ackflow.broker.requests import PopRequest
from ackflow.errors import OutcomeUnknown, StorageFailed
from ackflow.store.group_commit import Writer
from ackflow.store.sqlite import wal_sync
from ackflow.store.sqlite.store import SqliteStore


class Disk:
    """Counts syncs by session; `then` is called during the next sync of a session."""

    def __init__(self) -> None:
        self.syncs: list[int] = []
        self.then: dict[int, Callable[[], object]] = {}

    def __call__(self, handle: int) -> None:
        then = self.then.pop(handle, None)
        if then is not None:
            then()
        self.syncs.append(handle)

    def of(self, session: Session) -> int:
        return self.syncs.count(handle_of(session))


def handle_of(session: Session) -> int:
    log = store_of(session)._log
    assert log is not None
    return log._handle


def store_of(session: Session) -> SqliteStore:
    store = session._broker.store
    assert isinstance(store, SqliteStore)
    return store


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(wal_sync, "_sync", made)
    return made


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Callable[[], Session]]:
    """Sessions on one file. Each has its own store, as in separate processes."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(ackflow.connect(tmp_path / "a.db", upkeep=False))


class SlowPush:
    """A committed push whose sync blocks until the test releases it."""

    def __init__(self, disk: Disk, session: Session, queue: str, data: object) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._ends, syncing = threading.Event(), threading.Event()

        def slow() -> None:
            syncing.set()
            assert self._ends.wait(10)

        disk.then[handle_of(session)] = slow
        self.pushed = self._pool.submit(session.push, queue, data)
        assert syncing.wait(10)

    def __enter__(self) -> "SlowPush":
        return self

    def end(self) -> str:
        self._ends.set()
        return self.pushed.result(10)[0]

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._pool.shutdown()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when an answer waits for the sync of messages that it shows."""
    event, reach = threading.Event(), Writer._wait_until_synced

    def watched(self: Writer, jobs: list) -> None:  # type: ignore[type-arg]
        event.set()
        reach(self, jobs)

    monkeypatch.setattr(Writer, "_wait_until_synced", watched)
    return event


@pytest.mark.parametrize("auto_ack", [False, True])
def test_a_pop_of_what_is_being_synced_waits_for_that_sync(
    disk: Disk, sessions: Callable[[], Session], waiting: threading.Event, auto_ack: bool
) -> None:
    q = sessions()
    with SlowPush(disk, q, "q", 1) as push, ThreadPoolExecutor(1) as pool:
        popped = pool.submit(q.pop, "q", auto_ack=auto_ack)
        assert waiting.wait(10)
        assert not popped.done()
        id = push.end()
        assert [message.id for message in popped.result(10)] == [id]
    assert disk.of(q) == 1


def test_a_pop_on_a_loop_waits_for_that_sync_and_holds_up_nothing_else(
    disk: Disk, sessions: Callable[[], Session], waiting: threading.Event
) -> None:
    q = sessions()
    q.push("old", [1, 2, 3])

    async def work() -> None:
        on_loop = LoopBroker(q._broker)
        pops = [asyncio.ensure_future(on_loop.pop(PopRequest("q", "g", "c"))) for _ in range(2)]
        while not waiting.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await on_loop.pop(PopRequest("old", "g", "c"))).runs
        assert not any(pop.done() for pop in pops)
        push.end()
        assert [len((await pop).runs) for pop in pops] == [1, 1]
        on_loop.close()

    with SlowPush(disk, q, "q", [1, 2]) as push:
        asyncio.run(asyncio.wait_for(work(), 20))
    assert disk.of(q) == 2


def test_a_pop_of_older_messages_does_not_wait(disk: Disk, sessions: Callable[[], Session]) -> None:
    q, other = sessions(), sessions()
    q.push("q", [1, 2])
    with SlowPush(disk, q, "q", 3):
        assert [m.data for m in q.pop("q")] == [1]
        assert [m.data for m in other.pop("q")] == [2]
    assert (disk.of(q), disk.of(other)) == (2, 0)


def test_a_pop_in_the_transaction_of_its_push_waits_for_its_sync(
    disk: Disk, sessions: Callable[[], Session]
) -> None:
    q = sessions()
    writer = q._broker.writer
    with ThreadPoolExecutor(2) as pool:
        disk.then[handle_of(q)] = fail
        with writer.exclusively():
            pushed = pool.submit(q.push, "q", 1)
            until(lambda: len(writer._queue) == 1)
            popped = pool.submit(q.pop, "q")
            until(lambda: len(writer._queue) == 2)
        # The first sync fails; the other session checkpoints the WAL before anything is confirmed.
        outcomes = [type(pushed.exception(10)), type(popped.exception(10))]
    assert outcomes.count(OutcomeUnknown) >= 1
    assert disk.of(q) >= 1


def test_what_another_process_has_not_synced_is_synced_before_it_is_handed_out(
    disk: Disk, sessions: Callable[[], Session]
) -> None:
    q, other = sessions(), sessions()
    with SlowPush(disk, q, "q", "slow") as push:
        popped = other.pop("q")
        assert disk.of(other) == 1
        assert popped[0].id == push.end()


def test_what_another_process_has_synced_is_handed_out_without_a_sync(
    disk: Disk, sessions: Callable[[], Session]
) -> None:
    q, other = sessions(), sessions()
    for n in range(300):
        q.push("q", n)
        assert [m.data for m in other.pop("q")] == [n]
    assert (disk.of(q), disk.of(other)) == (300, 0)


def test_what_a_killed_process_has_not_synced_is_synced_before_it_is_handed_out(
    disk: Disk, sessions: Callable[[], Session], tmp_path: Path
) -> None:
    ran = peer(tmp_path / "a.db", "os._exit(9)")
    assert ran.returncode == 9
    other = sessions()
    assert [m.data for m in other.pop("q")] == ["maybe"]
    assert disk.of(other) == 1


def test_what_is_not_on_disk_is_not_browsed_either(
    disk: Disk, sessions: Callable[[], Session]
) -> None:
    q, other = sessions(), sessions()
    q.push("q", "old")
    with SlowPush(disk, q, "q", "new"):
        assert [m.data for m in other.browse("q", limit=1).items] == ["old"]
        assert disk.of(other) == 0
        assert [m.data for m in other.browse("q").items] == ["old", "new"]
        assert disk.of(other) == 1


def test_a_push_to_more_partitions_than_are_remembered_is_waited_for_as_well(
    disk: Disk, sessions: Callable[[], Session]
) -> None:
    q, other = sessions(), sessions()
    items = [ackflow.Item(data=n, partition=f"p{n}") for n in range(wal_sync.ENTRIES + 60)]
    with SlowPush(disk, q, "q", items):
        assert len(other.pop("q")) == 1
        assert disk.of(other) == 1


# after a failed sync


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def peer(path: Path, sync: str) -> "subprocess.CompletedProcess[bytes]":
    """A process that pushes one message with the given sync function."""
    script = (
        "import os, sys, errno, ackflow\n"
        "from ackflow.store.sqlite import wal_sync\n"
        "def fail(): raise OSError(errno.EIO, 'Input/output error')\n"
        "q = ackflow.connect(sys.argv[1], upkeep=False)\n"
        f"wal_sync._sync = lambda handle: {sync}\n"
        "try:\n    q.push('q', 'maybe')\n"
        "except ackflow.errors.OutcomeUnknown:\n    os._exit(5)\n"
    )
    return subprocess.run([sys.executable, "-c", script, str(path)], timeout=60, check=False)


class Hole:
    """The part of a WAL that may be missing on disk although a later sync succeeds: pages of a
    failed sync are not written by the next one, unless a program writes them again."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._salts = self._log()[16:24]
        self._first = self._stop = len(self._log())
        self._written: list[tuple[int, int]] = []
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._note)

    def _note(self, handle: int, data: bytes, offset: int) -> int:
        self._written.append((offset, offset + len(data)))
        return self._write(handle, data, offset)

    def _log(self) -> bytes:
        return Path(f"{self._path}-wal").read_bytes()

    def ends(self) -> None:
        self._stop = len(self._log())
        assert self._stop > self._first

    def after_a_power_cut(self, folder: Path) -> Path:
        """Return the file as it is on a disk that never wrote that part."""
        folder.mkdir()
        log = bytearray(self._log())
        again = any(first <= self._first and stop >= self._stop for first, stop in self._written)
        if log[16:24] == self._salts and not again:
            log[self._first : self._stop] = bytes(self._stop - self._first)
        (folder / "a.db").write_bytes(self._path.read_bytes())
        (folder / "a.db-wal").write_bytes(log)
        return folder / "a.db"


@pytest.mark.parametrize(("sync", "code"), [("fail()", 5), ("os._exit(9)", 9)])
def test_what_is_confirmed_after_the_failed_sync_of_a_process_that_died_is_on_disk(
    sessions: Callable[[], Session],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: str,
    code: int,
) -> None:
    """The sync failed, or the process died during a sync, which may have failed."""
    keeps_it_open = sessions()
    keeps_it_open.push("q", "before")
    reading = apsw.Connection(str(tmp_path / "a.db"))
    reading.execute("begin; select * from meta").fetchall()  # a long read, like a backup
    hole = Hole(tmp_path / "a.db", monkeypatch)
    assert peer(tmp_path / "a.db", sync).returncode == code
    hole.ends()
    sessions().push("q", "sure")
    after = hole.after_a_power_cut(tmp_path / "after")
    reading.close()
    with ackflow.connect(after, upkeep=False) as q:
        assert {"before", "sure"} <= {m.data for m in q.pop("q", batch=9)}


def test_a_sync_that_succeeds_while_another_session_failed_confirms_nothing_by_itself(
    disk: Disk, sessions: Callable[[], Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, other = sessions(), sessions()
    q.push("q", "before")
    hole = Hole(tmp_path / "a.db", monkeypatch)
    disk.then[handle_of(other)] = fail
    with pytest.raises(OutcomeUnknown):
        other.push("q", "maybe")
    hole.ends()
    q.push("q", "sure")
    after = hole.after_a_power_cut(tmp_path / "after")
    with ackflow.connect(after, upkeep=False) as found:
        assert {"before", "sure"} <= {m.data for m in found.pop("q", batch=9)}


def test_nothing_is_confirmed_while_the_log_cannot_be_written_again(
    disk: Disk, sessions: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, other = sessions(), sessions()
    disk.then[handle_of(other)] = fail
    with pytest.raises(OutcomeUnknown):
        other.push("q", "maybe")

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(StorageFailed, match="no more are accepted until it does"):
            q.push("q", "refused")
    q.push("q", "sure")
    assert [m.data for m in q.pop("q", batch=9)] == ["maybe", "sure"]


def test_a_log_that_the_disk_did_not_take_while_it_was_copied_is_in_doubt(
    sessions: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(sessions())

    class Failing:
        def wal_checkpoint(self, mode: int) -> tuple[int, int]:
            raise apsw.IOError("disk I/O error")

    assert not store._checkpointer.checkpoint(Failing())  # type: ignore[arg-type]
    assert store_of(sessions())._record.in_doubt
    sessions().push("q", 1)
    assert not store._record.in_doubt


def test_the_record_of_another_run_of_the_machine_counts_for_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db-sync")
    before = wal_sync.SyncRecord(path)
    before.begin(1)
    before.note(1, 0)
    before.ask(7)
    before.fail()
    now = wal_sync.SyncRecord(path)
    now.begin(1)
    assert now.unsynced(1, 1)
    assert now.in_doubt
    now.begin(2)
    assert not now.unsynced(1, 1)
    assert not now.in_doubt
    assert not now.unconfirmed


def test_a_file_that_was_replaced_while_it_was_open_takes_no_more_pushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False) as q:
        q.push("q", 1)
        for name in os.listdir(tmp_path):
            os.rename(tmp_path / name, tmp_path / name.replace("a.db", "moved.db"))
        store_of(q)._next_space_check = 0.0
        with pytest.raises(StorageFailed, match="moved, removed or replaced"):
            q.push("q", 2)
        assert [m.data for m in q.pop("q", batch=9)] == [1]


def test_a_process_that_changes_its_directory_goes_on_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ackflow.connect("a.db", upkeep=False) as q:
        q.push("q", 1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        store_of(q)._next_space_check = 0.0
        q.push("q", 2)
        assert [m.data for m in q.browse("q").items] == [1, 2]
    assert os.listdir(tmp_path / "elsewhere") == []
