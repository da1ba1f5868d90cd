"""Creation of a database file: from an image, atomically."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
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


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("links", [True, False])
def test_only_the_owner_may_read_a_new_database_and_its_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "here"
    folder.mkdir()
    folder.chmod(0o700)
    with ackflow.connect(folder / "a.db", upkeep=False) as q:
        q.push("jobs", 1)
        q.backup(folder / "b.db")
        found = modes(folder)
        assert {"a.db", "a.db-wal", "a.db-shm", "a.db-sync", "b.db"} <= found.keys()
    found.pop("a.db-reserve")  # holds no data
    assert set(found.values()) == {0o600}


def test_a_file_that_exists_keeps_its_permissions(tmp_path: Path) -> None:
    SqliteStore(str(tmp_path / "a.db"), None).close()
    (tmp_path / "a.db-sync").unlink()
    (tmp_path / "a.db").chmod(0o660)
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        q.push("jobs", 1)
        found = modes(tmp_path)
    found.pop("a.db-reserve")
    assert set(found.values()) == {0o660}


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
