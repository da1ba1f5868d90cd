"""A session that is garbage-collected without close() leaves nothing open."""

import asyncio
import gc
import os
import threading
import warnings
from pathlib import Path

import pytest
from tests.client.waiting import until

import ackflow
import ackflow.aio


def descriptors(folder: Path) -> list[str]:
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{handle}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ackflow")]


def use_and_drop(path: Path) -> None:
    q = ackflow.connect(path)
    q.push("q", ["x" * 4_000] * 1_000)  # enough for a checkpoint by the thread
    q.push("q", ["x" * 4_000] * 1_000)
    q.browse("q", limit=1)
    assert len(q.pop("q")) == 1


@pytest.mark.filterwarnings("ignore:unclosed session:ResourceWarning")
def test_sessions_that_are_dropped_give_back_their_files_and_threads(tmp_path: Path) -> None:
    before = threads()
    for _ in range(3):
        use_and_drop(tmp_path / "a.db")
    gc.collect()
    until(lambda: not descriptors(tmp_path) and threads() == before)
    assert not (tmp_path / "a.db-wal").exists()


@pytest.mark.filterwarnings("ignore:unclosed session:ResourceWarning")
def test_an_asyncio_session_that_is_dropped_does_so_as_well(tmp_path: Path) -> None:
    async def work() -> None:
        q = await ackflow.aio.connect(tmp_path / "a.db")
        await q.push("q", 1)
        await q.pop("q")

    before = threads()
    asyncio.run(work())
    gc.collect()
    until(lambda: not descriptors(tmp_path) and threads() == before)


def test_a_dropped_session_is_warned_of_and_a_closed_one_is_not(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
            q.push("q", 1)
        del q
        gc.collect()
        assert [str(w.message) for w in caught if w.category is ResourceWarning] == []
        q = ackflow.connect(tmp_path / "a.db", upkeep=False)
        del q
        gc.collect()
        (warned,) = [w for w in caught if w.category is ResourceWarning]
    assert str(warned.message) == f"unclosed session on {tmp_path / 'a.db'}"
    until(lambda: not descriptors(tmp_path))


def test_a_session_in_use_by_what_it_gave_is_not_dropped(tmp_path: Path) -> None:
    q = ackflow.connect(tmp_path / "a.db", upkeep=False)
    q.push("q", 1)
    (message,) = q.pop("q")
    session = message._share.origin.session
    del q
    gc.collect()
    message.ack()
    session.close()


def test_a_forked_child_leaves_what_it_inherited_to_its_parent(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "a.db", upkeep=False) as q:
        q.push("q", 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                q._broker.close = lambda: os._exit(7)  # type: ignore[method-assign]
                assert q._watching is not None
                q._watching()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [m.data for m in q.pop("q")] == [1]
