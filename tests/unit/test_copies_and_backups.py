"""Copies are split into segments like pushes; redrives run in slices; backups are new files."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow import Session
from ackflow.broker.core import dead_letters
from ackflow.errors import StorageFailed
from ackflow.options import MAX_SEGMENT_BYTES

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def q(path: Path) -> Iterator[Session]:
    with ackflow.connect(path, upkeep=False, may_lose="everything") as session:
        yield session


def largest(path: Path) -> int:
    db = apsw.Connection(str(path))
    found = db.execute("select max(bytes) from segments").get
    db.close()
    return int(found)


def numbered(q: Session, batch: int) -> list[int]:
    return [message.data[0] for message in q.pop("q", batch=batch)]


def test_requeued_copies_make_no_larger_segments_than_pushes(q: Session, path: Path) -> None:
    for number in range(9):
        q.push("q", bytes([number]) + b"x" * MIB)
    q.requeue(q.pop("q", batch=9))
    assert largest(path) <= MAX_SEGMENT_BYTES
    assert numbered(q, 9) == list(range(9))


def test_dead_letters_are_sent_back_in_parts_and_in_order(q: Session, path: Path) -> None:
    for number in range(20):
        q.push("q", bytes([number]) + b"x" * MIB)
    q.reject(q.pop("q", batch=20), "all of them")
    first = q.broker.do(dead_letters.redrive, True, dead_letters.DeadFilter("q"), None)
    assert 0 < first * MIB <= dead_letters.SLICE_BYTES + MIB
    assert q.redrive("q") == 20 - first
    assert largest(path) <= MAX_SEGMENT_BYTES
    assert numbered(q, 20) == list(range(20))


def test_a_backup_is_not_made_over_a_file_that_is_there(q: Session, path: Path) -> None:
    q.push("q", 1)
    with ackflow.connect(path.with_name("b.db"), upkeep=False) as other:
        other.push("other", 1)
        with pytest.raises(StorageFailed, match="exists already"):
            q.backup(path.with_name("b.db"))
        assert [queue.name for queue in other.queues()] == ["other"]


def test_a_backup_that_fails_leaves_nothing_behind(q: Session, path: Path) -> None:
    folder = path.parent / "none"
    with pytest.raises(StorageFailed, match="does not exist"):
        q.backup(folder / "c.db")
    q.backup(path.with_name("c.db"))
    assert sorted(file.name for file in path.parent.glob("c.db*")) == ["c.db"]


@pytest.mark.parametrize("many", [3])
def test_of_several_backups_to_one_name_exactly_one_succeeds(
    q: Session, path: Path, many: int
) -> None:
    q.push("q", ["x" * 1_000] * 2_000)
    target = path.with_name("c.db")
    ready = threading.Barrier(many)

    def copy() -> None:
        ready.wait()
        q.backup(target)

    with ThreadPoolExecutor(many) as pool:
        errors = [copied.exception(30) for copied in [pool.submit(copy) for _ in range(many)]]
    refused = [error for error in errors if error is not None]
    assert len(refused) == many - 1
    assert all("exists already" in str(error) for error in refused)
    with ackflow.connect(target, upkeep=False) as copied:
        assert copied.queue_stats("q").messages == 2_000
    assert sorted(file.name for file in path.parent.glob("c.db*.part*")) == []


def test_a_backup_is_on_disk_before_and_after_it_gets_its_name(
    q: Session, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    target, sync = path.with_name("c.db"), os.fsync

    def watched(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        synced.append((os.path.basename(name).rpartition(".")[2], target.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    q.backup(target)
    assert synced == [("part", False), (path.parent.name, True)]


def test_a_backup_without_hard_links_is_renamed(
    q: Session, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    q.push("q", 1)
    q.backup(path.with_name("c.db"))
    with ackflow.connect(path.with_name("c.db"), upkeep=False) as copied:
        assert [m.data for m in copied.pop("q")] == [1]
    assert not list(path.parent.glob("*.part*"))
