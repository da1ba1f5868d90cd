"""The disk is full: pushes are refused; pops, settles and upkeep continue."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_disk import MEBIBYTE, SIZE, SmallDisk, kinds, small_disk

import ackflow
from ackflow import Session
from ackflow.errors import StorageFull, TransactionFailed

PAYLOAD = "x" * 1_000


@pytest.fixture(params=kinds())
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def q(disk: SmallDisk) -> Iterator[Session]:
    with contextlib.closing(connect(disk)) as session:
        session.configure("jobs", keep_seconds=0, max_deliver=None, retry_limit=None)
        session.configure("sick", retry_limit=1)
        session.configure("slow", max_deliver=1)
        for queue in ("sick", "slow"):
            session.push(queue, [PAYLOAD] * 300)
        yield session


def connect(disk: SmallDisk) -> Session:
    return ackflow.connect(disk.folder / "queue.db")


def fill(q: Session, size: int = 50, start: int = 0) -> int:
    """Push until the disk is full; returns the number of confirmed messages."""
    number = start
    with contextlib.suppress(StorageFull):
        while True:
            some = range(number, number + size)
            q.push("jobs", [{"number": number, "filler": PAYLOAD} for number in some])
            number += size
    return number - start


def drain(q: Session) -> list[int]:
    numbers = []
    while batch := q.pop("jobs", batch=500):
        numbers += [message.data["number"] for message in batch]
        q.ack(batch)
    return numbers


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def takes_pushes(q: Session, queue: str = "later") -> bool:
    try:
        q.push(queue, {"number": -1, "filler": PAYLOAD})
    except StorageFull:
        return False
    return True


def test_a_push_to_a_full_disk_says_so_and_leaves_the_session_usable(q: Session) -> None:
    count = fill(q)
    assert count > 1_000
    with pytest.raises(StorageFull, match="The disk is full; pushes are rejected") as raised:
        q.push("jobs", PAYLOAD)
    assert raised.value.code == "storage_full"
    assert raised.value.status == 507
    assert q.pop("jobs")[0].data["number"] == 0


def test_every_way_of_pushing_is_refused_while_the_disk_is_full(q: Session) -> None:
    fill(q)
    with pytest.raises(StorageFull):
        q.push("other", PAYLOAD, key="once")
    with pytest.raises(StorageFull):
        q.stage("producer", 1, "jobs", PAYLOAD)
    message = q.pop("jobs")[0]
    with pytest.raises(TransactionFailed) as raised, q.transaction() as t:
        t.ack(message).push("other", PAYLOAD)
    assert raised.value.details["code"] == "storage_full"
    message.ack()


def test_what_was_confirmed_before_the_disk_was_full_is_there_and_nothing_else(
    q: Session, disk: SmallDisk
) -> None:
    count = fill(q)
    q.close()
    disk.resize(4 * SIZE)
    with connect(disk) as again:
        assert drain(again) == list(range(count))


def test_large_pushes_that_meet_a_full_disk_leave_nothing_behind(
    q: Session, disk: SmallDisk
) -> None:
    count = fill(q, size=2_000)
    disk.resize(4 * SIZE)
    assert drain(q) == list(range(count))


def test_hundreds_of_pops_and_acks_go_on_while_the_disk_is_full(q: Session) -> None:
    fill(q)
    for number in range(500):
        message = q.pop("jobs")[0]
        assert message.data["number"] == number
        message.ack(confirm=number % 2 == 0)
    assert q.group_stats("jobs").counts.done == 500


def test_hundreds_of_nacks_and_releases_go_on_while_the_disk_is_full(q: Session) -> None:
    fill(q)
    for _ in range(300):
        q.pop("jobs")[0].nack("not now", delay=0)
        q.pop("jobs")[0].release()
    assert q.group_stats("jobs").failed == 300


def test_hundreds_of_dead_letters_are_made_while_the_disk_is_full(q: Session) -> None:
    fill(q)
    for _ in range(300):
        q.pop("sick")[0].nack("broken")
    letters = q.dead_letters("sick", limit=1_000).items
    assert len(letters) == 300
    assert {(letter.kind, letter.reason, letter.data) for letter in letters} == {
        ("failed", "broken", PAYLOAD)
    }


def test_hundreds_of_leases_end_while_the_disk_is_full(q: Session) -> None:
    fill(q)
    for _ in range(300):
        assert len(q.pop("slow", lease_seconds=0.01)) == 1
    assert eventually(lambda: q.group_stats("slow").counts.dead == 300)


def test_a_restart_on_a_full_disk_goes_on_where_it_stopped(q: Session, disk: SmallDisk) -> None:
    count = fill(q)
    q.close()
    with connect(disk) as again:
        count += fill(again, start=count)
        assert not takes_pushes(again)
        for number in range(200):
            message = again.pop("jobs")[0]
            assert message.data["number"] == number
            message.ack()
        disk.resize(4 * SIZE)
        assert drain(again) == list(range(200, count))


def test_the_reserve_for_acks_is_not_spent_on_pushes_of_another_session(
    q: Session, disk: SmallDisk
) -> None:
    with connect(disk) as other:
        fill(q)
        left = disk.free()
        assert not takes_pushes(other)
        assert disk.free() > left - MEBIBYTE
        for _ in range(100):
            q.pop("jobs")[0].ack()
            other.pop("jobs")[0].ack()


def test_pushes_work_again_when_the_disk_has_room_again(q: Session, disk: SmallDisk) -> None:
    count = fill(q)
    for _ in range(50):
        q.pop("jobs")[0].ack()
    assert not takes_pushes(q)
    disk.resize(4 * SIZE)
    assert eventually(lambda: takes_pushes(q))
    assert drain(q) == list(range(50, count))


def test_pushes_work_again_when_acked_messages_were_trimmed(q: Session) -> None:
    count = fill(q)
    assert drain(q) == list(range(count))
    assert eventually(lambda: takes_pushes(q))
    assert fill(q) > count // 2


def test_a_disk_that_is_full_for_the_second_time_still_lets_messages_be_worked_off(
    q: Session,
) -> None:
    for _ in range(3):
        count = fill(q)  # few, where pushes are accepted as soon as some messages are trimmed
        assert count > 0
        singly = min(300, count)
        for number in range(singly):
            message = q.pop("jobs")[0]
            assert message.data["number"] == number
            message.ack()
        assert drain(q) == list(range(singly, count))
        assert eventually(lambda: takes_pushes(q))
