"""SQLite's log is copied into the file while the writer goes on, and starts again from its beginning."""

import os
import threading
from pathlib import Path

import ackflow
from ackflow.store.copying import LONG_PAGES, NOW_PAGES
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
        for _ in range(2 * NOW_PAGES):
            q.push("q", BODY)

    sessions = [ackflow.connect(path, upkeep=False, may_lose="recent") for _ in range(4)]
    threads = [threading.Thread(target=work, args=(q,)) for q in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log_pages(path) < LONG_PAGES + 4 * NOW_PAGES
    for q in sessions:
        q.close()
