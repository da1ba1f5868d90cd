"""Where claims are stored: a plain delivery in its cursor, every other claim in a row."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow import Session, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def q(tmp_path: Path, clock: VirtualClock) -> Iterator[Session]:
    with ackflow.connect(tmp_path / "a.db", clock=clock, upkeep=False) as session:
        yield session


def ask(tmp_path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(apsw.Connection(str(tmp_path / "a.db"))) as db:
        return db.execute(sql).fetchall()


def kept(tmp_path: Path) -> list[tuple[object, ...]]:
    return ask(tmp_path, "select kept_lo, kept_hi from cursors where kept > 0 order by lane")


def rows(tmp_path: Path) -> list[tuple[object, ...]]:
    return ask(tmp_path, "select lo, hi from claim_rows order by lane, lo")


def test_a_hand_out_of_new_messages_has_no_row(q: Session, tmp_path: Path) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=2)
    assert (kept(tmp_path), rows(tmp_path)) == ([(0, 2)], [])
    q.ack(batch)
    assert (kept(tmp_path), rows(tmp_path)) == ([], [])


def test_the_next_hand_out_beside_it_has_one(q: Session, tmp_path: Path) -> None:
    q.push("orders", [1, 2, 3])
    first, second = q.pop("orders", batch=1), q.pop("orders", batch=1)
    assert (kept(tmp_path), rows(tmp_path)) == ([(0, 1)], [(1, 2)])
    q.ack(first)
    third = q.pop("orders", batch=1)
    assert (kept(tmp_path), rows(tmp_path)) == ([(2, 3)], [(1, 2)])
    q.ack([*second, *third])
    assert (kept(tmp_path), rows(tmp_path)) == ([], [])


@pytest.mark.parametrize("settle", ["ack", "nack", "release"])
def test_what_is_left_of_it_moves_to_a_row(q: Session, tmp_path: Path, settle: str) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=3)
    getattr(batch[0], settle)()
    assert kept(tmp_path) == []
    assert (1, 3) in rows(tmp_path)
    assert q.ack([batch[1], batch[2]]).settled == 2


def test_one_whose_lease_is_over_moves_to_a_row(
    q: Session, tmp_path: Path, clock: VirtualClock
) -> None:
    q.push("orders", [1])
    q.pop("orders", lease_seconds=10)
    clock.advance(11)
    (again,) = q.pop("orders")
    assert (again.deliveries, again.redelivered) == (2, True)
    assert (kept(tmp_path), rows(tmp_path)) == ([], [(0, 1)])


def test_one_that_is_extended_stays_and_ends_later(
    q: Session, tmp_path: Path, clock: VirtualClock
) -> None:
    q.push("orders", [1])
    (message,) = q.pop("orders", lease_seconds=10)
    message.extend(60)
    clock.advance(50)
    assert not q.pop("orders")
    assert kept(tmp_path) == [(0, 1)]
    clock.advance(11)
    assert q.pop("orders")[0].redelivered


def test_one_extended_beside_a_row_of_the_same_lease_takes_it_along(
    q: Session, tmp_path: Path, clock: VirtualClock
) -> None:
    q.push("orders", [1])
    q.pop("orders")[0].nack("no")
    q.push("orders", [2])
    batch = q.pop("orders", batch=2, lease_seconds=10)
    assert [message.data for message in batch] == [1, 2]
    assert (kept(tmp_path), rows(tmp_path)) == ([(1, 2)], [(0, 1)])
    batch[0].extend(60)
    clock.advance(50)
    assert not q.pop("orders", batch=2)
    assert q.ack(batch).settled == 2


def test_one_cursor_of_a_group_keeps_at_a_time(q: Session, tmp_path: Path) -> None:
    q.push("orders", [1], partition="a")
    first = q.pop("orders")
    q.push("orders", [2], partition="b")
    second = q.pop("orders")
    assert (len(kept(tmp_path)), len(rows(tmp_path))) == (1, 1)
    q.ack([*first, *second])
    q.push("orders", [3], partition="b")
    q.pop("orders")
    assert ask(tmp_path, "select sum(keeps), sum(kept > 0) from cursors") == [(1, 1)]
    assert rows(tmp_path) == []


def test_each_group_has_its_own(q: Session, tmp_path: Path) -> None:
    q.push("orders", [1, 2])
    q.pop("orders", group="a", batch=2)
    q.pop("orders", group="b", batch=1)
    assert kept(tmp_path) == [(0, 2), (0, 1)]
    assert rows(tmp_path) == []


def test_it_is_undone_with_its_transaction(q: Session, tmp_path: Path) -> None:
    q.push("orders", [1])
    (message,) = q.pop("orders")
    both = q.transaction().ack(message).put("k", 1, expect=7)
    with pytest.raises(ackflow.AckflowError):
        both.commit()
    assert kept(tmp_path) == [(0, 1)]
    assert q.ack(message).settled == 1


def test_another_session_settles_it_by_its_token(
    q: Session, tmp_path: Path, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    with ackflow.connect(tmp_path / "a.db", clock=clock, upkeep=False) as other:
        assert other.lease(batch.token).ack().settled == 2
    assert kept(tmp_path) == []
