"""Why: for every state a message can be in, one sentence and the fields behind it."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from ackflow import Session, VirtualClock, ids
from ackflow.broker.core.admin import global_pause
from ackflow.model import Why

START = 1_700_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


def clock_time(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%d %H:%M:%S")


def why(q: Session, id: str) -> Why:
    """The answer for group g; its sentence is one, and what it prints as."""
    answer = q.why("orders", id, group="g")
    assert str(answer) == answer.sentence
    assert answer.sentence[0].isupper()
    assert answer.sentence.endswith(".")
    assert (answer.message_id, answer.group) == (id, "g")
    return answer


# messages that no group can have


def test_a_queue_that_is_not_there_is_an_answer(q: Session) -> None:
    (id,) = q.push("orders", 1)
    answer = q.why("nowhere", id)
    assert answer.state == "unknown"
    assert "no queue 'nowhere'" in answer.sentence


def test_a_message_the_queue_never_had_is_unknown(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.push("bills", 1)
    q.group("orders", "g")
    place = ids.parse_message_id(id)
    strangers = [
        ids.message_id(place.store, place.lane, 1),
        ids.message_id(place.store, place.lane + 50, 0),
        ids.message_id(place.store ^ 1, place.lane, 0),
    ]
    for stranger in strangers:
        answer = why(q, stranger)
        assert answer.state == "unknown"
        assert "'orders' never had this message" in answer.sentence
    assert q.why("bills", id, group="g").state == "unknown"


def test_a_group_that_never_asked_is_an_answer(q: Session) -> None:
    (id,) = q.push("orders", 1, partition="eu", priority=3)
    answer = why(q, id)
    assert answer.state == "no_group"
    assert "no group 'g'" in answer.sentence
    assert (answer.partition, answer.priority, answer.sequence) == ("eu", 3, 0)


def test_asking_does_not_make_the_group(q: Session) -> None:
    (id,) = q.push("orders", 1)
    why(q, id)
    assert q.queue_stats("orders").groups == []


# ready


@pytest.mark.every_store
def test_a_ready_message_tells_its_position(q: Session) -> None:
    some = q.push("orders", ["a", "b", "c"])
    q.group("orders", "g")
    for n, id in enumerate(some):
        answer = why(q, id)
        assert (answer.state, answer.position, answer.deliveries) == ("ready", n + 1, 0)
        assert f"position {n + 1}" in answer.sentence
        assert (answer.partition, answer.sequence) == ("Default", n)


def test_positions_count_what_comes_before_and_nothing_else(q: Session) -> None:
    some = list(q.push("orders", list(range(6))))
    some += q.push("orders", "delayed", delay=60)
    some += q.push("orders", "last")
    batch = q.pop("orders", group="g", batch=4)
    batch[0].ack()
    batch[1].release()
    batch[2].nack(delay=60)
    batch[3].nack("no")
    q.delete_message("orders", some[4])
    positions = {n: why(q, some[n]).position for n in (1, 3, 5, 7)}
    assert positions == {1: 1, 3: 2, 5: 3, 7: 4}
    assert [m.id for m in q.pop("orders", group="g", batch=9)] == [some[n] for n in (1, 3, 5, 7)]


def test_a_message_that_came_back_tells_its_counters(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].nack("no luck")
    answer = why(q, id)
    assert (answer.state, answer.deliveries, answer.failures) == ("ready", 1, 1)
    assert answer.error == "no luck"


def test_a_lease_past_its_end_is_ready_whether_noticed_or_not(
    q: Session, clock: VirtualClock
) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")
    clock.advance(300)
    answer = why(q, id)
    assert (answer.state, answer.deliveries) == ("ready", 1)


# not yet


@pytest.mark.every_store
def test_a_leased_message_tells_by_whom_and_until_when(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g", consumer="first")[0].nack()
    clock.advance(5)
    batch = q.pop("orders", group="g", consumer="worker-7", lease_seconds=60)
    answer = why(q, id)
    assert answer.state == "leased"
    assert (answer.consumer, answer.token) == ("worker-7", batch.token)
    assert (answer.at, answer.until) == (at(5), at(65))
    assert (answer.deliveries, answer.failures) == (2, 1)
    for part in ("worker-7", clock_time(65), "delivery 2"):
        assert part in answer.sentence


@pytest.mark.every_store
def test_a_waiting_message_tells_after_which_error(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].nack("disk full: /data", delay=90)
    answer = why(q, id)
    assert (answer.state, answer.error, answer.until) == ("waiting", "disk full: /data", at(90))
    assert (answer.deliveries, answer.failures) == (1, 1)
    assert "disk full: /data" in answer.sentence
    assert clock_time(90) in answer.sentence


def test_a_waiting_message_tells_that_its_lease_ran_out(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g", backoff=[100], lease_seconds=10)
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")
    clock.advance(50)
    answer = why(q, id)
    assert (answer.state, answer.until, answer.error) == ("waiting", at(110), None)
    assert "lease ran out" in answer.sentence


def test_a_nack_without_reason_is_not_blamed_on_the_lease(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].nack(delay=90)
    answer = why(q, id)
    assert (answer.state, answer.failures) == ("waiting", 1)
    assert "lease ran out" not in answer.sentence


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_delayed_message_tells_until_when(q: Session, looked_at: bool) -> None:
    (id,) = q.push("orders", 1, delay=30)
    q.group("orders", "g")
    if looked_at:
        assert list(q.pop("orders", group="g")) == []
    answer = why(q, id)
    assert (answer.state, answer.until, answer.deliveries) == ("delayed", at(30), 0)
    assert clock_time(30) in answer.sentence


# held back


@pytest.mark.parametrize(("group", "what"), [(None, "queue"), ("g", "group")])
def test_a_paused_queue_or_group_holds_it_back(q: Session, group: str | None, what: str) -> None:
    (id,) = q.push("orders", 1)
    q.group("orders", "g")
    q.pause("orders", group)
    answer = why(q, id)
    assert (answer.state, answer.position) == ("paused", 1)
    assert f"the {what} is paused" in answer.sentence
    q.resume("orders", group)
    assert why(q, id).state == "ready"


def test_a_message_that_waits_holds_back_those_behind_it(q: Session) -> None:
    q.group("orders", "g", ordering="ordered")
    first, second = q.push("orders", [1, 2])
    q.pop("orders", group="g")[0].nack("no", delay=40)
    answer = why(q, second)
    assert (answer.state, answer.behind, answer.until) == ("held_back", first, at(40))
    assert first in answer.sentence
    assert clock_time(40) in answer.sentence
    assert why(q, first).state == "waiting"


def test_a_message_that_is_leased_holds_back_its_partition(q: Session) -> None:
    q.group("orders", "g", ordering="ordered")
    first, second = q.push("orders", [1, 2])
    (other,) = q.push("orders", 3, priority=9)
    (elsewhere,) = q.push("orders", 4, partition="free")
    q.pop("orders", group="g", partition="Default", consumer="holder", lease_seconds=60)
    for id in (second, other):
        answer = why(q, id)
        assert (answer.state, answer.behind, answer.until) == ("held_back", first, at(60))
        assert "holder" in answer.sentence
    assert why(q, elsewhere).state == "ready"


def test_the_lock_of_the_queue_holds_it_back(q: Session) -> None:
    q.group("orders", "g", ordering="exclusive", lease_seconds=30)
    _, second = q.push("orders", [1, 2])
    q.pop("orders", group="g")
    answer = why(q, second)
    assert (answer.state, answer.until) == ("held_back", at(30))
    assert "locked" in answer.sentence


def test_a_full_window_holds_it_back(q: Session) -> None:
    q.group("orders", "g", max_ack_pending=2)
    *_, third = q.push("orders", [1, 2, 3])
    batch = q.pop("orders", group="g", batch=9)
    assert len(batch) == 2
    answer = why(q, third)
    assert (answer.state, answer.position) == ("window_full", 1)
    assert "max_ack_pending" in answer.sentence
    batch[0].ack()
    assert why(q, third).state == "ready"


# over


@pytest.mark.every_store
def test_an_acked_message_tells_by_whom_and_when(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    batch = q.pop("orders", group="g", consumer="worker")
    clock.advance(12)
    q.ack(batch)
    clock.advance(100)
    answer = why(q, id)
    assert (answer.state, answer.at, answer.consumer) == ("acked", at(12), "worker")
    assert answer.token == batch.token
    assert f"acknowledged at {clock_time(12)}" in answer.sentence
    assert "worker" in answer.sentence


def test_why_reports_the_delivery_that_was_acked(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g", consumer="one")[0].nack("no")
    clock.advance(5)
    q.ack(q.pop("orders", group="g", consumer="two"))
    answer = why(q, id)
    assert (answer.state, answer.consumer, answer.at) == ("acked", "two", at(5))


@pytest.mark.every_store
def test_a_dead_message_tells_of_what_it_died(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    clock.advance(3)
    q.pop("orders", group="g", consumer="worker")[0].reject("no such customer")
    answer = why(q, id)
    assert (answer.state, answer.kind, answer.error) == ("dead", "rejected", "no such customer")
    assert (answer.at, answer.deliveries, answer.consumer) == (at(3), 1, "worker")
    assert "rejected" in answer.sentence
    assert "no such customer" in answer.sentence


def test_a_requeued_message_is_over_and_its_copy_ready(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].requeue()
    answer = why(q, id)
    assert answer.state == "requeued"
    assert "requeued" in answer.sentence
    copy = q.browse("orders").items[1].id
    assert why(q, copy).state == "ready"


def test_a_deleted_message_is_said_to_be_deleted(q: Session) -> None:
    leased, unread = q.push("orders", [1, 2])
    q.pop("orders", group="g")
    for id in (leased, unread):
        q.delete_message("orders", id)
        answer = why(q, id)
        assert answer.state == "deleted"
        assert "Deleted" in answer.sentence


def purge(q: Session, clock: VirtualClock) -> None:
    q.purge("orders")


def trim(q: Session, clock: VirtualClock) -> None:
    q.ack(q.pop("orders", group="g", batch=9))
    q.configure("orders", keep_seconds=0)
    q.upkeep()


def expire(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", retention_seconds=1)
    clock.advance(1)
    q.upkeep()


@pytest.mark.parametrize("later", [0, 86_400])
@pytest.mark.parametrize("leave", [purge, trim, expire])
def test_a_deleted_message_is_still_said_to_be_deleted_when_its_lane_is_emptied(
    q: Session, clock: VirtualClock, leave: Callable[[Session, VirtualClock], None], later: int
) -> None:
    leased, back, acked, unread, kept = q.push("orders", list(range(5)))
    _, two, three = q.pop("orders", group="g", batch=3)
    q.nack([two], "no", delay=60)
    q.ack([three])
    for id in (leased, back, acked, unread):
        assert q.delete_message("orders", id)
    clock.advance(later)
    if later:
        q.upkeep()  # the leases above are forgotten
    leave(q, clock)
    assert q.browse("orders").items == []
    states = [why(q, id).state for id in (leased, back, acked, unread)]
    assert states == ["deleted", "deleted", "deleted" if later else "acked", "deleted"]
    assert "removed by hand" in why(q, unread).sentence
    assert why(q, kept).state != "deleted"


def end(q: Session, state: str, clock: VirtualClock) -> None:
    """Take from group g all it has of the queue, in the way that leads to a state."""
    if state == "skipped":
        q.seek("orders", "g", to="end")
    elif state == "purged":
        q.purge("orders")
    else:
        q.configure("orders", retention_seconds=1)
        clock.advance(1)
        q.upkeep()


@pytest.mark.parametrize("state", ["skipped", "purged"])
def test_what_was_taken_from_its_holder_says_so(
    q: Session, clock: VirtualClock, state: str
) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g", consumer="holder")
    clock.advance(4)
    end(q, state, clock)
    answer = why(q, id)
    assert (answer.state, answer.at, answer.consumer) == (state, at(4), "holder")
    assert state in answer.sentence


@pytest.mark.every_store
@pytest.mark.parametrize("state", ["skipped", "purged", "expired"])
def test_what_went_without_being_handed_out_is_not_said_to_be_done(
    q: Session, clock: VirtualClock, state: str
) -> None:
    q.group("orders", "g")
    (id,) = q.push("orders", 1)
    end(q, state, clock)
    assert why(q, id).state == state


RETURNS: list[Callable[[Session], object]] = [
    lambda q: q.nack(q.pop("orders", group="g"), "no", delay=9),
    lambda q: q.release(q.pop("orders", group="g")),
    lambda q: q.pop("orders", group="g", lease_seconds=0.5),
]


@pytest.mark.parametrize("state", ["skipped", "purged", "expired"])
@pytest.mark.parametrize("came_back", RETURNS, ids=["nacked", "released", "lease ran out"])
def test_what_went_after_it_came_back_tells_how_it_went(
    q: Session, clock: VirtualClock, state: str, came_back: Callable[[Session], object]
) -> None:
    (id,) = q.push("orders", 1)
    came_back(q)
    clock.advance(1)
    q.upkeep()
    end(q, state, clock)
    assert why(q, id).state == state


@pytest.mark.parametrize("came_back", RETURNS, ids=["nacked", "released", "lease ran out"])
def test_what_was_then_handed_out_without_a_lease_is_done(
    q: Session, clock: VirtualClock, came_back: Callable[[Session], object]
) -> None:
    (id,) = q.push("orders", 1)
    came_back(q)
    clock.advance(10)
    assert len(q.pop("orders", group="g", auto_ack=True)) == 1
    answer = why(q, id)
    assert answer.state == "done"
    assert "without a lease" in answer.sentence


def test_a_dead_letter_thrown_away_is_not_blamed_on_retention(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", max_deliver=1)
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")
    clock.advance(300)
    q.upkeep()
    assert why(q, id).state == "dead"
    q.purge_dead("orders")
    answer = why(q, id)
    assert answer.state in ("purged", "done")
    assert "retention" not in answer.sentence


def test_a_dead_letter_sent_back_tells_when(q: Session, clock: VirtualClock) -> None:
    first, second = q.push("orders", [1, 2])
    q.reject(q.pop("orders", group="g", batch=2), "no")
    clock.advance(5)
    assert q.redrive("orders") == 2
    for id in (first, second):
        answer = why(q, id)
        assert (answer.state, answer.at) == ("redriven", at(5))
        assert "sent back from the dead letters" in answer.sentence


def test_a_dead_letter_thrown_away_tells_when(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].reject("no")
    clock.advance(5)
    assert q.purge_dead("orders") == 1
    answer = why(q, id)
    assert (answer.state, answer.at) == ("purged", at(5))
    assert "purged from the dead letters" in answer.sentence


def test_a_message_acked_after_it_died_and_was_sought_back_is_acked(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].reject("bad")
    q.seek("orders", "g", to="start")
    assert why(q, id).state == "ready"
    q.ack(q.pop("orders", group="g"))
    assert why(q, id).state == "acked"


@pytest.mark.parametrize("passed", [False, True])
def test_a_copy_for_another_group_is_hidden(q: Session, passed: bool) -> None:
    q.push("orders", 1)
    q.group("orders", "g")
    q.pop("orders", group="other")[0].requeue()
    copy = q.browse("orders").items[1].id
    if passed:
        q.pop("orders", group="g", batch=9)
    answer = why(q, copy)
    assert answer.state == "hidden"
    assert "another group" in answer.sentence


def test_what_is_no_longer_remembered_was_done_before(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.ack(q.pop("orders", group="g"))
    clock.advance(1000)
    q.upkeep()
    answer = why(q, id)
    assert (answer.state, answer.until) == ("done", at(400))
    assert f"Done before {clock_time(400)}" in answer.sentence


def test_a_trimmed_message_is_still_known_as_done(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.ack(q.pop("orders", group="g"))
    clock.advance(3 * 86_400)
    while q.upkeep().total:
        pass
    assert q.browse("orders").items == []
    assert why(q, id).state == "done"


def test_each_group_has_its_own_answer(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.ack(q.pop("orders", group="a"))
    q.pop("orders", group="b")
    q.group("orders", "c")
    states = [q.why("orders", id, group=group).state for group in "abcd"]
    assert states == ["acked", "leased", "ready", "no_group"]


def test_what_its_partition_is_too_busy_for_is_held_back(q: Session, clock: VirtualClock) -> None:
    q.configure("orders", window_seconds=60)
    q.group("orders", "g")
    (id,) = q.push("orders", 1)
    clock.advance(50)
    q.push("orders", 2)
    answer = why(q, id)
    assert (answer.state, answer.until) == ("held_back", at(110))
    assert "quiet for 60 s" in answer.sentence
    clock.advance(60)
    assert why(q, id).state == "ready"


@pytest.mark.parametrize("open_session", ["memory", "file", "postgres"], indirect=True)
def test_maintenance_holds_back_as_a_pause_does(q: Session) -> None:
    q.group("orders", "g")
    (id,) = q.push("orders", 1)
    q.broker.do(global_pause.switch, True, pops=True)
    assert why(q, id).state == "paused"
    assert "paused for all queues" in why(q, id).sentence


@pytest.mark.parametrize(
    ("option", "state"),
    [("max_wait_seconds", "dead"), ("retention_seconds", "expired"), ("ttl_seconds", "expired")],
)
def test_what_no_pop_would_hand_out_any_more_is_not_called_ready(
    q: Session, clock: VirtualClock, option: str, state: str
) -> None:
    q.configure("orders", **{option: 10})
    q.group("orders", "g")
    (id,) = q.push("orders", 1)
    clock.advance(20)
    assert why(q, id).state == state


def begins_new(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g", start="new")


def begins_at_a_time(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g", start=START + 5)


@pytest.mark.parametrize("begin", [begins_new, begins_at_a_time])
def test_what_lies_before_the_start_of_a_group_was_skipped(
    q: Session, clock: VirtualClock, begin: Callable[[Session, VirtualClock], None]
) -> None:
    old, _ = q.push("orders", ["a", "b"])
    clock.advance(10)
    begin(q, clock)
    (new,) = q.push("orders", "c")
    q.pop("orders", group="g")[0].ack()
    clock.advance(1000)
    q.upkeep()
    answer = why(q, old)
    assert (answer.state, answer.until) == ("skipped", None)
    assert "begins after it" in answer.sentence
    assert why(q, new).state == "done"
    q.seek("orders", "g", to="start")
    assert why(q, old).state == "ready"
    q.ack(q.pop("orders", group="g", batch=9))
    clock.advance(1000)
    q.upkeep()
    assert why(q, old).state == "done"


def test_what_was_handed_out_without_a_lease_is_done_and_no_time_is_made_up(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g", auto_ack=True)
    answer = why(q, id)
    assert (answer.state, answer.until) == ("done", None)
    assert answer.sentence == "Done: delivered without a lease."


def test_a_lease_that_ran_out_after_a_failure_is_what_it_waits_after(
    q: Session, clock: VirtualClock
) -> None:
    q.group("orders", "g", backoff=[10])
    (id,) = q.push("orders", 1)
    q.pop("orders", group="g")[0].nack("declined", delay=0)
    q.pop("orders", group="g", lease_seconds=5)
    clock.advance(6)
    answer = why(q, id)
    assert (answer.state, answer.failures, answer.error) == ("waiting", 1, "declined")
    assert answer.sentence.endswith("after its lease ran out.")


def test_what_grew_too_old_behind_what_is_kept_was_not_deleted_by_hand(
    q: Session, clock: VirtualClock
) -> None:
    q.configure("orders", ttl_seconds=10)
    q.group("orders", "g")
    _, old = q.push("orders", ["held", "old"])
    q.pop("orders", group="g", lease_seconds=100)
    clock.advance(20)
    answer = why(q, old)
    assert answer.state == "expired"
    q.delete_message("orders", q.push("orders", "by hand")[0])
    assert why(q, old).state == "expired"


def test_a_deleted_copy_is_still_not_for_another_group(q: Session) -> None:
    q.group("orders", "g")
    q.push("orders", 1)
    q.pop("orders", group="other")[0].requeue()
    (copy,) = q.pop("orders", group="other")
    assert why(q, copy.id).state == "hidden"
    q.delete_message("orders", copy.id)
    assert why(q, copy.id).state == "hidden"
