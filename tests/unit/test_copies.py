"""Copies are cut into segments as pushes are, and dead letters sent in parts; backups are new files."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow import Session
from ackflow.broker import dead
from ackflow.errors import StorageFailed
from ackflow.policy import MAX_SEGMENT_BYTES

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
    first = q.broker.do(dead.redrive, True, dead.DeadFilter("q"), None)
    assert 0 < first * MIB <= dead.SLICE_BYTES + MIB
    assert q.redrive("q") == 20 - first
    assert largest(path) <= MAX_SEGMENT_BYTES
    assert numbered(q, 20) == list(range(20))


def test_a_backup_is_not_made_over_a_file_that_is_there(q: Session, path: Path) -> None:
    q.push("q", 1)
    with ackflow.connect(path.with_name("b.db"), upkeep=False) as other:
        other.push("other", 1)
        with pytest.raises(StorageFailed, match="is there already"):
            q.backup(path.with_name("b.db"))
        assert [queue.name for queue in other.queues()] == ["other"]


def test_a_backup_that_fails_leaves_nothing_behind(q: Session, path: Path) -> None:
    folder = path.parent / "none"
    with pytest.raises(StorageFailed, match="does not exist"):
        q.backup(folder / "c.db")
    q.backup(path.with_name("c.db"))
    assert sorted(file.name for file in path.parent.glob("c.db*")) == ["c.db"]
