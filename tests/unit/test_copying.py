"""SQLite's log is copied into the file while the writer goes on, and starts again from its beginning."""

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

import ackflow
from ackflow.store.copying import LONG_PAGES, NOW_PAGES, Copying
from ackflow.store.sqlite import PAGE_SIZE

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
    written = 4 * 4 * NOW_PAGES  # at the least, and how long one waits for its turn is not ours
    assert log_pages(path) < written
    for q in sessions:
        q.close()


def test_a_long_log_is_copied_with_other_writers_kept_out(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    kept_out = []

    class Watched(apsw.Connection):
        def wal_checkpoint(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
            with closing(apsw.Connection(path)) as third:
                try:
                    third.execute("begin immediate")
                except apsw.BusyError:
                    kept_out.append(True)
            return super().wal_checkpoint(*args, **kwargs)

    with closing(apsw.Connection(path)) as db:
        db.pragma("journal_mode", "wal")
        db.wal_autocheckpoint(0)
        db.execute("create table t (body)")
        copying = Copying(lambda: Watched(path))
        for pages, expected in ((10, []), (LONG_PAGES + 1, [True])):
            db.execute("insert into t values (zeroblob(?))", (pages * PAGE_SIZE,))
            copying.copy(db)
            assert kept_out == expected
