"""Peek shows what a group would be given next; follow shows new messages as they are pushed."""

import pytest

from ackflow import Session, VirtualClock
from ackflow.errors import InvalidArgument, QueueNotFound


def peeked(q: Session, **options: object) -> list[object]:
    return [m.data for m in q.peek("orders", **options)]  # type: ignore[arg-type]


@pytest.mark.every_store
def test_peek_shows_what_the_next_pops_give(q: Session) -> None:
    q.push("orders", ["late"], priority=9)
    q.push("orders", ["a", "b"], partition="eu")
    q.push("orders", ["c", "d"], partition="us")
    q.pop("orders", batch=1)[0].ack()
    expected = peeked(q)
    assert sorted(map(str, expected)) == ["b", "c", "d", "late"]
    assert expected[-1] == "late"
    assert q.pop("orders")[0].data == expected[0]


def test_peek_shows_what_came_back_before_what_is_new(q: Session) -> None:
    q.push("orders", [1, 2, 3, 4])
    first, second = q.pop("orders", batch=2)
    second.nack("no")
    assert peeked(q) == [2, 3, 4]
    first.release()
    assert peeked(q) == [1, 2, 3, 4]
    assert peeked(q, limit=2) == [1, 2]
    assert [m.data for m in q.pop("orders", batch=9)] == [1, 2, 3, 4]


def test_peek_leaves_out_what_is_leased_delayed_deleted_or_for_another_group(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "other")
    ids = q.push("orders", ["leased", "gone", "there"])
    q.push("orders", "delayed", delay=60)
    q.pop("orders")
    q.delete_message("orders", ids[1])
    q.pop("orders", group="other")[0].requeue()
    assert peeked(q) == ["there"]
    assert peeked(q, group="other") == ["there", "leased"]
    clock.advance(60)
    assert peeked(q) == ["there", "delayed"]


def test_peek_for_a_group_that_is_not_there_begins_at_the_start_and_makes_none(q: Session) -> None:
    q.push("orders", [1, 2])
    assert peeked(q, group="new") == [1, 2]
    assert q.queue_stats("orders").groups == []


def test_peek_changes_nothing(q: Session) -> None:
    q.push("orders", [1, 2])
    assert peeked(q) == peeked(q) == [1, 2]
    (message,) = q.pop("orders")
    assert (message.deliveries, message.redelivered) == (1, False)


def test_peek_and_follow_of_a_queue_that_is_not_there_are_refused(q: Session) -> None:
    with pytest.raises(QueueNotFound):
        q.peek("nothing")
    with pytest.raises(QueueNotFound):
        q.follow("nothing")
    with pytest.raises(InvalidArgument):
        q.peek("orders", limit=0)
    with pytest.raises(InvalidArgument):
        q.follow("orders", last=-1)


def test_follow_tells_what_was_pushed_since_the_last_look(q: Session, clock: VirtualClock) -> None:
    q.push("orders", ["old"])
    news = q.follow("orders")
    assert news.items == []
    q.push("orders", ["a"], partition="eu")
    clock.advance(1)
    q.push("orders", ["b"])
    clock.advance(1)
    q.push("orders", ["c"], partition="eu")
    news = q.follow("orders", news.after)
    assert [m.data for m in news.items] == ["a", "b", "c"]
    assert q.follow("orders", news.after).items == []


def test_follow_begins_with_the_last_few(q: Session, clock: VirtualClock) -> None:
    for n in range(6):
        q.push("orders", n, partition=str(n % 3))
        clock.advance(1)
    assert [m.data for m in q.follow("orders", last=4).items] == [2, 3, 4, 5]
    assert [m.data for m in q.follow("orders", last=9, partition="1").items] == [1, 4]


@pytest.mark.every_store
def test_follow_tells_everything_in_parts(q: Session) -> None:
    q.push("orders", ["first"])
    news = q.follow("orders")
    q.push("orders", list(range(25)))
    q.push("orders", list(range(25, 50)), partition="eu")
    found: list[object] = []
    for _ in range(20):
        news = q.follow("orders", news.after, limit=7)
        assert len(news.items) <= 7
        found += [m.data for m in news.items]
    assert sorted(map(int, map(str, found))) == list(range(50))


def test_follow_goes_on_after_a_purge(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    news = q.follow("orders")
    q.purge("orders")
    q.push("orders", [4])
    assert [m.data for m in q.follow("orders", news.after).items] == [4]


def test_the_backlog_of_upkeep_is_shown(q: Session, clock: VirtualClock) -> None:
    assert q.overdue_seconds() == 0
    q.push("orders", 1)
    q.pop("orders", lease_seconds=10)
    clock.advance(25)
    # A server takes back what is over before it looks.
    assert q.overdue_seconds() in (15, 0)
    q.upkeep()
    assert q.overdue_seconds() == 0


def test_why_tells_the_number_of_a_dead_letter(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].reject("no")
    (letter,) = q.dead_letters("orders").items
    assert q.why("orders", id).dead_letter == letter.id
