"""The durability mode belongs to the file: no session may lower it."""

from pathlib import Path

import pytest

import ackflow
from ackflow.errors import InvalidArgument, StorageBusy
from ackflow.store.durability import MODES, MayLose
from ackflow.store.sqlite.store import SqliteStore


def synchronous(q: ackflow.Session) -> tuple[int, bool]:
    """Return `pragma synchronous` (0 off, 1 normal, 2 full), and whether pushes are synced."""
    store = q.broker.store
    assert isinstance(store, SqliteStore)
    return store._db.pragma("synchronous"), store.sync is not None


HOW = {"nothing": (2, False), "acks": (1, True), "recent": (1, False), "everything": (0, False)}


@pytest.mark.parametrize("mode", MODES)
def test_a_session_that_names_no_mode_has_that_of_the_file(tmp_path: Path, mode: MayLose) -> None:
    for named in (mode, None, mode):
        with ackflow.connect(tmp_path / "a.db", upkeep=False, may_lose=named) as q:
            assert synchronous(q) == HOW[mode]


def test_a_new_file_may_lose_acks(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        assert synchronous(q) == HOW["acks"]
    with pytest.raises(InvalidArgument):
        ackflow.connect(tmp_path / "a.db", upkeep=False, may_lose="recent")


@pytest.mark.parametrize(("of_file", "named"), [(f, n) for f in MODES for n in MODES if f != n])
def test_a_session_may_lose_no_more_than_the_file(
    tmp_path: Path, of_file: MayLose, named: MayLose
) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False, may_lose=of_file) as q:
        if MODES.index(named) < MODES.index(of_file) and of_file != "everything":
            with ackflow.connect(path, upkeep=False, may_lose=named) as other:
                assert synchronous(other) == HOW[named]
        else:
            with pytest.raises(InvalidArgument, match="set_may_lose"):
                ackflow.connect(path, upkeep=False, may_lose=named)
        q.push("q", 1)
    with ackflow.connect(path, upkeep=False) as q:
        assert synchronous(q) == HOW[of_file]
        assert [m.data for m in q.pop("q", batch=9)] == [1]


def test_the_mode_is_changed_while_no_session_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False, may_lose="everything") as q:
        q.push("q", 1)
        with pytest.raises(StorageBusy, match="open in another session"):
            ackflow.set_may_lose(path, "nothing")
        assert synchronous(q) == HOW["everything"]
    ackflow.set_may_lose(path, "nothing")
    with ackflow.connect(path, upkeep=False) as q:
        assert synchronous(q) == HOW["nothing"]
        assert [m.data for m in q.pop("q")] == [1]
    ackflow.set_may_lose(path, "recent")
    with ackflow.connect(path, upkeep=False, may_lose="recent") as q:
        assert synchronous(q) == HOW["recent"]


@pytest.mark.parametrize("mode", ["some", None])
def test_only_a_mode_of_a_file_is_set(tmp_path: Path, mode: MayLose) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False):
        pass
    with pytest.raises(InvalidArgument):
        ackflow.set_may_lose(tmp_path / "a.db", mode)
    with pytest.raises(InvalidArgument):
        ackflow.set_may_lose(tmp_path / "none.db", "acks")
    assert not (tmp_path / "none.db").exists()


def test_a_backup_keeps_the_mode(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False, may_lose="nothing") as q:
        q.backup(tmp_path / "b.db")
    with ackflow.connect(tmp_path / "b.db", upkeep=False) as q:
        assert synchronous(q) == HOW["nothing"]


@pytest.mark.parametrize("mode", MODES)
def test_a_private_database_has_whichever_mode_it_is_given(mode: MayLose) -> None:
    with ackflow.connect(":memory:", upkeep=False, may_lose=mode) as q:
        q.push("q", 1)
        assert [m.data for m in q.pop("q")] == [1]
