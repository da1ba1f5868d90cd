"""Checkpoints run concurrently with the writer, and the WAL restarts from its beginning."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import ackflow
from ackflow.store.sqlite import checkpoint
from ackflow.store.sqlite.checkpoint import LONG_PAGES, NOW_PAGES, Checkpointer
from ackflow.store.sqlite.disk_reserve import SIZE
from ackflow.store.sqlite.store import PAGE_SIZE

BODY = "x" * 1_000
FRAME = PAGE_SIZE + 24


def log_pages(path: Path) -> int:
    return os.path.getsize(f"{path}-wal") // FRAME


def test_the_log_of_many_small_pushes_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False, may_lose="recent") as q:
        for n in range(3 * NOW_PAGES):
            q.push("q", {"n": n, "body": BODY})
        assert log_pages(path) < 2 * NOW_PAGES


def test_the_log_of_large_pushes_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False, may_lose="recent") as q:
        for _ in range(40):
            q.push("q", [BODY] * 1_000)
        assert log_pages(path) < 2 * NOW_PAGES


def test_the_log_of_several_sessions_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    def work(q: ackflow.Session) -> None:
        for _ in range(4 * NOW_PAGES):
            q.push("q", BODY)

    sessions = [ackflow.connect(path, upkeep=False, may_lose="recent") for _ in range(4)]
    threads = [threading.Thread(target=work, args=(q,)) for q in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log_pages(path) < len(sessions) * 2 * LONG_PAGES
    for q in sessions:
        q.close()


def test_the_log_stays_short_though_readers_follow_each_other_without_a_pause(
    tmp_path: Path,
) -> None:
    path, reading = tmp_path / "a.db", threading.Event()
    readers: list[apsw.Connection] = []

    def read() -> None:
        """One snapshot begins before the other ends: there is always one."""
        held = apsw.Connection(str(path)), apsw.Connection(str(path))
        readers.extend(held)
        with contextlib.suppress(apsw.ConnectionClosedError):
            while not reading.is_set():
                for db, other in (held, held[::-1]):
                    db.execute("begin; select count(*) from queues")
                    reading.wait(0.03)
                    if other.in_transaction:
                        other.execute("commit")

    with ackflow.connect(path, upkeep=False, may_lose="recent") as q:
        q.push("q", BODY)
        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(60):
            q.push("q", [BODY] * 1_000)
            assert log_pages(path) * FRAME < 2 * SIZE  # twice the reserve
        reading.set()
        thread.join()
        for db in readers:
            db.close()


class Watched(apsw.Connection):
    """Records whether others were locked out during a checkpoint, or tried during another."""

    def __init__(self, path: str, busy: int = 0) -> None:
        super().__init__(path)
        self.pragma("journal_mode", "wal")  # reads the WAL, as the store's connection does
        self.path = path
        self.busy = busy

    def wal_checkpoint(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        with closing(apsw.Connection(self.path)) as third:
            try:
                third.execute("begin immediate")
                kept_out.append(False)
            except apsw.BusyError:
                kept_out.append(True)
        self.busy -= 1
        if self.busy >= 0:
            raise apsw.BusyError("another copies")
        return super().wal_checkpoint(*args, **kwargs)


kept_out: list[bool] = []


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    kept_out.clear()
    with closing(apsw.Connection(str(tmp_path / "a.db"))) as made:
        made.pragma("journal_mode", "wal")
        made.wal_autocheckpoint(0)
        made.execute("create table t (body)")
        yield made


def fill(db: apsw.Connection, pages: int) -> None:
    db.execute("insert into t values (zeroblob(?))", (pages * PAGE_SIZE,))


def left(db: apsw.Connection) -> int:
    """Return how many pages of the WAL are not checkpointed."""
    pages, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return pages - copied


def test_a_long_log_is_copied_with_other_writers_kept_out(db: apsw.Connection) -> None:
    copies = Checkpointer(lambda: Watched(db.filename))
    for pages, expected in ((10, []), (LONG_PAGES + 1, [True])):
        fill(db, pages)
        assert copies.checkpoint(db)
        assert kept_out == expected


def test_another_that_copies_is_waited_for_with_the_writers_kept_out(db: apsw.Connection) -> None:
    fill(db, LONG_PAGES + 1)
    assert Checkpointer(lambda: Watched(db.filename, busy=3)).checkpoint(db, exclusive=True)
    assert kept_out == [True] * 4
    assert left(db) == 0


def test_another_that_copies_for_ever_is_waited_for_once_and_not_at_every_commit(
    db: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "EXCLUSIVE_SECONDS", 0.01)
    stuck = Checkpointer(lambda: Watched(db.filename, busy=1 << 30))
    fill(db, LONG_PAGES + 1)
    stuck.after_commit(db)
    tried = len(kept_out)
    assert tried > 1
    assert not db.in_transaction
    for _ in range(10):
        fill(db, 1)
        stuck.after_commit(db)
    assert len(kept_out) == tried
