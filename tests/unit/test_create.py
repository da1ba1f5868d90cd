"""Creation of a database file: from an image, atomically."""

import errno
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ackflow
from ackflow.store.sqlite import store as sqlite
from ackflow.store.sqlite.store import SqliteStore


def works(path: Path) -> bool:
    with ackflow.connect(path, upkeep=False) as q:
        q.push("jobs", 1)
        found = [message.data for message in q.pop("jobs")]
    return found == [1] and not list(path.parent.glob("*.part"))


def test_sessions_that_create_one_file_at_once_share_it(tmp_path: Path) -> None:
    for round in range(5):
        path = tmp_path / f"{round}.db"
        with ThreadPoolExecutor(8) as pool:
            stores = list(pool.map(lambda _, p=str(path): SqliteStore(p, None), range(8)))  # type: ignore[misc]
        assert len({store.id for store in stores}) == 1
        for store in stores:
            store.close()
        assert works(path)


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("call", ["link", "fsync"])
def test_sqlite_creates_the_file_where_the_image_cannot_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        SqliteStore(str(tmp_path / "a.db"), None).close()
    assert works(tmp_path / "a.db")


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "real.db")
    assert works(tmp_path / "a.db")
    assert (tmp_path / "a.db").is_symlink()
    assert (tmp_path / "real.db").stat().st_size


def test_a_new_file_has_the_permissions_that_sqlite_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        SqliteStore(str(tmp_path / "a.db"), None).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.db").stat().st_mode) == 0o640


def test_two_databases_in_memory_share_nothing() -> None:
    with ackflow.connect(":memory:", upkeep=False) as one:
        one.push("jobs", 1)
        with ackflow.connect(":memory:", upkeep=False) as other:
            assert one.broker.store.id != other.broker.store.id
            assert other.queues() == []


def test_the_reserve_of_an_older_version_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert works(path)
    os.rename(f"{path}-reserve", f"{path}-ballast")
    reserve = os.stat(f"{path}-ballast").st_ino
    assert works(path)
    assert not os.path.exists(f"{path}-ballast")
    assert os.stat(f"{path}-reserve").st_ino == reserve


def test_a_process_may_create_a_file_after_another_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file appears between the check for it and its creation."""
    path = tmp_path / "a.db"
    create: Callable[[str], None] = sqlite.create_file
    ids: list[int] = []

    def late(place: str) -> None:
        monkeypatch.setattr(sqlite, "create_file", create)
        first = SqliteStore(place, None)
        ids.append(first.id)
        first.close()
        create(place)

    monkeypatch.setattr(sqlite, "create_file", late)
    second = SqliteStore(str(path), None)
    assert [second.id] == ids
    second.close()
    assert works(path)
