"""Which verbs sync the log, and what becomes of them when the disk or a signal says no."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ackflow
from ackflow.errors import OutcomeUnknown
from ackflow.store import syncing
from ackflow.store.levels import MayLose


class Syncs:
    """Counts syncs; `then` happens in the middle of the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.then: Callable[[], None] | None = None

    def __call__(self, handle: int) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()
        self.count += 1


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    made = Syncs()
    monkeypatch.setattr(syncing, "_sync", made)
    return made


def open_in(folder: Path, may_lose: MayLose = "acks") -> ackflow.Session:
    return ackflow.connect(folder / "a.db", upkeep=False, may_lose=may_lose)


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_push_is_synced_once_and_a_pop_and_an_ack_are_not(tmp_path: Path, syncs: Syncs) -> None:
    with open_in(tmp_path) as q:
        q.push("q", [1, 2])
        assert syncs.count == 1
        first, second = q.pop("q", batch=2)
        first.ack()
        assert syncs.count == 1
        second.ack(confirm=True)
        assert syncs.count == 2


@pytest.mark.parametrize("may_lose", ["nothing", "recent", "everything"])
def test_in_other_modes_nothing_is_synced_by_hand(
    tmp_path: Path, syncs: Syncs, may_lose: MayLose
) -> None:
    with open_in(tmp_path, may_lose) as q:
        q.push("q", 1)
    assert syncs.count == 0


def test_a_disk_that_does_not_confirm_is_told_as_an_unknown_outcome(
    tmp_path: Path, syncs: Syncs
) -> None:
    with open_in(tmp_path) as q:
        syncs.then = fail
        with pytest.raises(OutcomeUnknown, match="did not confirm a commit"):
            q.push("q", "maybe")
        q.push("q", "sure")
        assert [m.data for m in q.pop("q", batch=10)] == ["maybe", "sure"]


def test_an_interrupt_during_a_sync_comes_after_it_and_pushes_once(
    tmp_path: Path, syncs: Syncs
) -> None:
    with open_in(tmp_path) as q:
        syncs.then = interrupt
        with pytest.raises(KeyboardInterrupt):
            q.push("q", "once")
        assert syncs.count == 1
        assert [m.data for m in q.pop("q", batch=10)] == ["once"]


def test_an_unknown_outcome_is_told_to_all_who_wait_and_nothing_is_pushed_twice(
    tmp_path: Path, syncs: Syncs
) -> None:
    with open_in(tmp_path) as q:
        held, told = threading.Event(), list[str]()

        def push(n: int) -> None:
            try:
                q.push("q", n)
            except OutcomeUnknown as error:
                told.append(error.code)

        others = [threading.Thread(target=push, args=(n,)) for n in range(1, 5)]

        def hold() -> None:
            for other in others:
                other.start()
            while len(q._broker.writer._jobs) < 4:
                held.wait(0.001)
            syncs.then = fail

        syncs.then = hold
        q.push("q", 0)
        for other in others:
            other.join()
        assert told == ["outcome_unknown"] * 4
        assert sorted(m.data for m in q.pop("q", batch=10)) == [0, 1, 2, 3, 4]
