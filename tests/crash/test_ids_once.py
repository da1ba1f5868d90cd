"""No message id is assigned twice: not after a power cut, not by a copy of the file."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ackflow
from ackflow import Session, ids
from ackflow.store.durability import MayLose
from ackflow.store.sqlite import store, wal_sync

MESSAGES = 40


class SlowDisk:
    """Syncs the WAL slowly; `durable` is the size that would survive a power cut."""

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"
        self._lock = threading.Lock()
        self.durable = 0

    def sync(self, handle: int) -> None:
        size = os.path.getsize(self._log)
        time.sleep(0.002)
        with self._lock:
            self.durable = max(self.durable, size)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_id_that_a_consumer_has_seen_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    path = tmp_path / "a.db"
    disk = SlowDisk(path)
    monkeypatch.setattr(wal_sync, "_sync", disk.sync)
    seen: list[tuple[str, int]] = []  # an id, and `durable` when it was seen
    with ackflow.connect(path, upkeep=False) as q:
        other = ackflow.connect(path, upkeep=False) if processes == 2 else q
        pushing = threading.Thread(target=push, args=(q,))
        pushing.start()
        while len(seen) < MESSAGES:
            for message in other.pop("q", wait=0.01):
                seen.append((message.id, disk.durable))
        pushing.join()
        log = Path(f"{path}-wal").read_bytes()
        whole = path.read_bytes()
        other.close()
    lost = [id for id, durable in seen if not stored(tmp_path / "b.db", whole, log[:durable], id)]
    assert lost == []


def push(q: Session) -> None:
    for n in range(MESSAGES):
        q.push("q", n)


def stored(path: Path, whole: bytes, log: bytes, id: str) -> bool:
    path.write_bytes(whole)
    Path(f"{path}-wal").write_bytes(log)
    with ackflow.connect(path, upkeep=False) as q:
        return id in {m.id for m in q.browse("q", limit=MESSAGES).items} if q.queues() else False


def restore(q: Session, target: Path) -> list[str]:
    """Copy a database, push to it and to its copy, and return all assigned ids."""
    q.backup(target)
    lost = list(q.push("q", ["pushed after the backup"] * 3))
    lost += q.push("new", "to a queue the backup does not know")
    with ackflow.connect(target, upkeep=False) as restored:
        assert [m.data for m in restored.pop("q", batch=9)] == ["old"]
        given = [*restored.push("q", ["pushed after the restore"] * 3)]
        given += restored.push("new", 1)
        assert [m.id for m in restored.pop("q", batch=9)] == given[:3]
    return lost + given


def test_a_restored_backup_gives_no_id_that_was_given_after_the_backup(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        q.push("q", "old")
        given = restore(q, tmp_path / "b.db")
    assert len(set(given)) == len(given)


def test_two_copies_of_one_backup_give_different_ids(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        q.push("q", "old")
        q.backup(tmp_path / "b.db")
        given = list(q.push("q", 1))
    for name in ("c.db", "d.db"):
        (tmp_path / name).write_bytes((tmp_path / "b.db").read_bytes())
        for _ in range(2):  # opened again it is the same store
            with ackflow.connect(tmp_path / name, upkeep=False) as copy:
                given += copy.push("q", 1)
    assert len(set(given)) == len(given)
    assert len({ids.parse_message_id(id).store for id in given}) == 3


@pytest.mark.parametrize(
    ("may_lose", "stores"), [("nothing", 1), ("acks", 1), ("recent", 2), ("everything", 2)]
)
def test_a_file_that_may_have_lost_pushes_in_a_power_cut_gives_other_ids_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_lose: MayLose, stores: int
) -> None:
    def run(boot: str, work: Callable[[Session], object]) -> int:
        monkeypatch.setattr(store, "boot_id", lambda: boot)
        with ackflow.connect(tmp_path / "a.db", upkeep=False, may_lose=may_lose) as q:
            work(q)
            return q.broker.store.id

    first = [run("one", lambda q: q.push("q", 1)) for _ in range(2)]
    then = [run("two", lambda q: q.push("q", 1)) for _ in range(2)]
    assert first[0] == first[1]
    assert then[0] == then[1]
    assert len({*first, *then}) == stores
