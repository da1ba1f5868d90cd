"""Seek: a group that is moved back reads again, and its counts stay correct."""

import pytest

from ackflow import Session, VirtualClock

pytestmark = pytest.mark.every_store


def test_copies_for_others_are_not_counted_when_a_group_is_moved_back(q: Session) -> None:
    q.group("orders", "g")
    q.group("orders", "h")
    q.push("orders", [1, 2])
    for message in q.pop("orders", group="g", batch=2):
        message.requeue()
    q.purge("orders")
    q.push("orders", 3)
    q.pop("orders", group="h", auto_ack=True)
    before = q.group_stats("orders", "h").counts.pushed
    q.seek("orders", "h", to="start")
    assert q.group_stats("orders", "h").counts.pushed == before == 3


def test_copies_between_the_new_place_and_the_old_one_are_passed_again(q: Session) -> None:
    q.group("orders", "g")
    q.group("orders", "h")
    q.push("orders", [1, 2])
    for message in q.pop("orders", group="g", batch=2):
        message.requeue()
    q.push("orders", 3)
    for _ in range(2):
        assert [m.data for m in q.pop("orders", group="h", batch=9)] == [1, 2, 3]
        q.seek("orders", "h", to="start")
        counts = q.group_stats("orders", "h").counts
        assert (counts.ready, counts.pushed) == (3, 3)


def test_what_was_skipped_and_is_handed_out_after_all_is_not_called_skipped(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g")
    (id,) = q.push("orders", 1)
    q.seek("orders", "g", to="end")
    assert q.why("orders", id, group="g").state == "skipped"
    q.seek("orders", "g", to="start")
    clock.advance(5)
    q.pop("orders", group="g", auto_ack=True)
    assert q.why("orders", id, group="g").state == "done"
