"""Settling: what each verb does, one message or many, by handle or by token alone."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Batch, Item, Message, Session, Settled, Verdict, VirtualClock
from ackflow.errors import InvalidArgument, LeaseLost, NotFound
from ackflow.model import when

pytestmark = pytest.mark.every_store

VERBS = ["ack", "nack", "release", "requeue", "reject", "dead_letter"]
AFTER = {
    "ack": {"done": 1},
    "nack": {"ready": 1},
    "release": {"ready": 1},
    "requeue": {"done": 1, "ready": 1},
    "reject": {"dead": 1},
    "dead_letter": {"dead": 1},
}


def counts(q: Session, group: str = "g", queue: str = "q") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats(queue, group).counts)
    return {name: n for name, n in found.items() if n}


def take(q: Session, n: int = 3, queue: str = "q", **options: Any) -> Batch[Message]:
    """Push n numbers and lease them."""
    q.push(queue, list(range(n)))
    batch = q.pop(queue, group="g", batch=n, **options)
    assert len(batch) == n
    return batch


def pop_data(q: Session, **options: Any) -> list[Any]:
    return [m.data for m in q.pop("q", group="g", batch=100, **options)]


def token_of(some: Batch[Message] | Message) -> str:
    assert some.token is not None
    return some.token


def refusals(answer: Settled) -> dict[str, str]:
    return {refusal.message_id: refusal.code for refusal in answer.refused}


# every verb, every way to say it


def by_method(q: Session, batch: Batch[Message], verb: str) -> None:
    getattr(batch[1], verb)()


def by_session(q: Session, batch: Batch[Message], verb: str) -> None:
    assert getattr(q, verb)(batch[1]).settled == 1


def by_list(q: Session, batch: Batch[Message], verb: str) -> None:
    assert getattr(q, verb)([batch[1]]).settled == 1


def by_verdict(q: Session, batch: Batch[Message], verb: Any) -> None:
    assert q.settle([(batch[1], verb)]).settled == 1


def by_atomic_verdict(q: Session, batch: Batch[Message], verb: Any) -> None:
    assert q.settle([(batch[1], Verdict(verb))], atomic=True).settled == 1


def by_token(q: Session, batch: Batch[Message], verb: str) -> None:
    assert getattr(q.lease(token_of(batch)), verb)(batch[1].id).settled == 1


def by_reading_again(q: Session, batch: Batch[Message], verb: str) -> None:
    getattr(q.lease(token_of(batch)).read()[1], verb)()


Way = Callable[[Session, Batch[Message], str], None]
ONE: list[Way] = [
    by_method, by_session, by_list, by_verdict, by_atomic_verdict, by_token, by_reading_again,
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", ONE)
def test_a_verb_ends_one_message_and_leaves_its_batch_alone(
    q: Session, way: Way, verb: str
) -> None:
    batch = take(q)
    way(q, batch, verb)
    assert counts(q) == {"leased": 2, **AFTER[verb]}
    q.ack([batch[0], batch[2]])
    assert counts(q)["done"] == 2 + AFTER[verb].get("done", 0)


def all_by_batch(q: Session, batch: Batch[Message], verb: str) -> Settled:
    answer: Settled = getattr(q, verb)(batch)
    return answer


def all_by_list(q: Session, batch: Batch[Message], verb: str) -> Settled:
    answer: Settled = getattr(q, verb)(list(batch))
    return answer


def all_by_verdicts(q: Session, batch: Batch[Message], verb: Any) -> Settled:
    return q.settle([(m, verb) for m in batch])


def all_by_token(q: Session, batch: Batch[Message], verb: str) -> Settled:
    answer: Settled = getattr(q.lease(token_of(batch)), verb)()
    return answer


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", [all_by_batch, all_by_list, all_by_verdicts, all_by_token])
def test_a_verb_ends_a_whole_batch(
    q: Session, way: Callable[[Session, Batch[Message], Any], Settled], verb: str
) -> None:
    batch = take(q, 5)
    answer = way(q, batch, verb)
    dead = 5 if verb in ("reject", "dead_letter") else 0
    assert answer == Settled(settled=5, noop=0, dead=dead, refused=[])
    assert counts(q) == {name: 5 * n for name, n in AFTER[verb].items()}
    assert q.leases("q") == []


# ack, nack, release, requeue


def test_what_is_acked_never_comes_again(q: Session, clock: VirtualClock) -> None:
    q.ack(take(q))
    clock.advance(10_000)
    assert pop_data(q) == []
    assert q.group_stats("q", "g").consumed == 3


def test_what_is_nacked_comes_again_counted_as_a_failure(q: Session) -> None:
    take(q, 1)[0].nack("boom")
    (again,) = q.pop("q", group="g")
    assert (again.deliveries, again.failures, again.redelivered) == (2, 1, True)
    why = q.why("q", again.id, group="g")
    assert (why.failures, why.error) == (1, "boom")


def test_what_is_released_comes_again_uncounted(q: Session) -> None:
    take(q, 1)[0].release()
    (again,) = q.pop("q", group="g")
    assert (again.deliveries, again.failures, again.redelivered) == (1, 0, True)


def test_what_is_requeued_comes_again_as_a_copy(q: Session) -> None:
    (message,) = take(q, 1)
    message.requeue()
    (copy,) = q.pop("q", group="g")
    assert copy.id != message.id
    assert (copy.data, copy.deliveries, copy.failures, copy.redelivered) == (0, 2, 0, True)


def test_a_message_that_came_first_is_not_marked_as_redelivered(q: Session) -> None:
    (message,) = take(q, 1)
    assert (message.deliveries, message.failures, message.redelivered) == (1, 0, False)


# reject and dead_letter


@pytest.mark.parametrize(("verb", "kind"), [("reject", "rejected"), ("dead_letter", "failed")])
def test_a_dead_letter_keeps_the_message_and_why_it_died(
    q: Session, clock: VirtualClock, verb: str, kind: str
) -> None:
    item = Item(data={"a": 1}, headers={"h": "1"}, transaction_id="t")
    q.push("q", item, partition="p", priority=7)
    created = when(clock.now())
    (message,) = q.pop("q", group="g", consumer="worker")
    message.nack("first")
    (message,) = q.pop("q", group="g", consumer="worker")
    clock.advance(5)
    getattr(message, verb)("no good")
    page = q.dead_letters("q")
    (letter,) = page.items
    assert (page.total, letter.message_id, letter.data) == (1, message.id, {"a": 1})
    assert (letter.queue, letter.group, letter.partition, letter.priority) == ("q", "g", "p", 7)
    assert (letter.kind, letter.reason, letter.consumer) == (kind, "no good", "worker")
    assert (letter.deliveries, letter.failures) == (2, 1)
    assert (letter.created_at, letter.died_at) == (created, created + timedelta(seconds=5))
    assert (letter.headers, letter.transaction_id) == ({"h": "1"}, "t")


@pytest.mark.parametrize("verb", ["reject", "dead_letter"])
def test_a_dead_letter_belongs_to_one_group(q: Session, verb: str) -> None:
    q.push("q", "a")
    getattr(q.pop("q", group="g")[0], verb)()
    assert [m.data for m in q.pop("q", group="other")] == ["a"]
    assert len(q.dead_letters("q", group="g").items) == 1
    assert q.dead_letters("q", group="other").items == []


def test_what_is_rejected_never_comes_again(q: Session, clock: VirtualClock) -> None:
    q.reject(take(q), "bad")
    clock.advance(10_000)
    assert pop_data(q) == []


# extend


def test_extend_keeps_every_message_of_the_lease(q: Session, clock: VirtualClock) -> None:
    batch = take(q, lease_seconds=10)
    clock.advance(9)
    assert batch[1].extend(20) == when(clock.now()) + timedelta(seconds=20)
    clock.advance(19.9)
    assert pop_data(q) == []
    assert q.ack(batch).settled == 3


def test_extend_may_be_repeated_past_the_first_end(q: Session, clock: VirtualClock) -> None:
    (message,) = take(q, 1, lease_seconds=10)
    for _ in range(10):
        clock.advance(9)
        message.extend(10)
    assert pop_data(q) == []
    clock.advance(10)
    assert pop_data(q) == [0]


def test_extend_without_a_time_takes_the_lease_time_of_the_group(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", lease_seconds=50)
    (message,) = take(q, 1)
    clock.advance(40)
    assert message.extend() == when(clock.now()) + timedelta(seconds=50)


def test_extend_never_shortens_a_lease(q: Session, clock: VirtualClock) -> None:
    (message,) = take(q, 1, lease_seconds=100)
    assert message.extend(5) == when(clock.now()) + timedelta(seconds=100)
    clock.advance(99)
    message.ack()


def test_extend_by_token_and_by_session(q: Session, clock: VirtualClock) -> None:
    batch = take(q, 2, lease_seconds=10)
    end = when(clock.now()) + timedelta(seconds=30)
    assert q.lease(token_of(batch)).extend(30) == end
    assert q.extend(batch, 40) == end + timedelta(seconds=10)
    assert q.extend(batch[0], 50) == end + timedelta(seconds=20)
    assert [lease.expires_at for lease in q.leases("q")] == [end + timedelta(seconds=20)]


def test_extend_of_messages_of_several_leases_answers_with_the_earliest_end(
    q: Session, clock: VirtualClock
) -> None:
    long, short = take(q, 1, lease_seconds=100), take(q, 1, lease_seconds=10)
    end = when(clock.now()) + timedelta(seconds=60)
    assert q.extend([long[0], short[0]], 60) == end
    clock.advance(59)
    assert q.ack([long[0], short[0]]).settled == 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "ten"])
def test_a_lease_cannot_be_extended_by_nothing(q: Session, seconds: Any) -> None:
    batch = take(q, 1)
    with pytest.raises(InvalidArgument):
        batch[0].extend(seconds)


# ack(up_to=True)


def test_ack_up_to_ends_all_before_it_under_the_same_lease(q: Session) -> None:
    batch = take(q, 6)
    batch[3].ack(up_to=True)
    assert counts(q) == {"done": 4, "leased": 2}
    q.release(batch[4:])
    assert pop_data(q) == [4, 5]


def test_ack_up_to_leaves_other_leases_lanes_and_failed_messages_alone(q: Session) -> None:
    other = take(q, 2)
    q.push("q", "elsewhere", partition="elsewhere")
    q.push("q", [2, 3, 4, 5])
    batch = q.pop("q", group="g", batch=100)
    mine = {m.data: m for m in batch}
    mine[2].nack("failed", delay=50)
    mine[4].ack(up_to=True)
    assert counts(q) == {"done": 2, "waiting": 1, "leased": 4}
    assert q.ack([*other, mine["elsewhere"], mine[5]]).settled == 4


def test_ack_up_to_a_message_acked_before_still_ends_all_before_it(q: Session) -> None:
    batch = take(q, 4)
    batch[2].ack()
    batch[2].ack(up_to=True)
    assert counts(q) == {"done": 3, "leased": 1}


# nack(rest=True)


def test_nack_with_rest_releases_what_comes_after_it(q: Session) -> None:
    batch = take(q, 5)
    batch[0].ack()
    batch[2].nack("stuck", rest=True)
    assert counts(q) == {"done": 1, "leased": 1, "ready": 3}
    again = q.pop("q", group="g", batch=100)
    assert [(m.data, m.deliveries, m.failures) for m in again] == [(2, 2, 1), (3, 1, 0), (4, 1, 0)]
    batch[1].ack()


def test_nack_with_rest_goes_on_over_the_other_partitions_of_the_batch(q: Session) -> None:
    for partition in "abc":
        q.push("q", [1, 2], partition=partition)
    batch = q.pop("q", group="g", batch=6)
    batch[2].nack(rest=True)
    assert counts(q) == {"leased": 2, "ready": 4}
    assert q.ack(batch[:2]).settled == 2


def test_nack_with_rest_leaves_what_is_settled_as_it_is(q: Session) -> None:
    batch = take(q, 4)
    batch[2].ack()
    batch[0].nack(rest=True, delay=100)
    assert counts(q) == {"done": 1, "waiting": 1, "ready": 2}
    assert pop_data(q) == [1, 3]


def test_a_verdict_may_release_the_rest_too(q: Session) -> None:
    batch = take(q, 4)
    q.settle([(batch[0], "ack"), (batch[1], Verdict("nack", "stuck", rest=True))])
    assert counts(q) == {"done": 1, "ready": 3}


# mixed verdicts


def test_mixed_verdicts_each_do_their_own(q: Session) -> None:
    batch = take(q, 7)
    verdicts = [*zip(batch, VERBS, strict=False), (batch[6], Verdict("nack", "later", delay=9))]
    answer = q.settle(verdicts)  # type: ignore[arg-type]
    assert answer == Settled(settled=7, noop=0, dead=2, refused=[])
    assert counts(q) == {"done": 2, "ready": 3, "dead": 2, "waiting": 1}
    assert {d.data: d.kind for d in q.dead_letters("q").items} == {4: "rejected", 5: "failed"}


def test_mixed_verdicts_may_span_queues_groups_and_leases(q: Session) -> None:
    one, two = take(q, 2), take(q, 2, queue="r")
    q.push("q", "x")
    (three,) = q.pop("q", group="other", batch=1)
    answer = q.settle([(one[0], "ack"), (two[1], "ack"), (three, "ack"), (one[1], "reject")])
    assert (answer.settled, answer.dead) == (4, 1)
    assert counts(q, queue="r") == {"done": 1, "leased": 1}


def test_one_stale_message_does_not_undo_the_others(q: Session) -> None:
    batch = take(q, 4)
    batch[1].release()
    answer = q.settle([(m, "ack") for m in batch])
    assert answer.settled == 3
    assert refusals(answer) == {batch[1].id: "already_settled"}
    assert counts(q) == {"done": 3, "ready": 1}


def test_two_verdicts_on_one_message_only_the_first_counts(q: Session) -> None:
    (message,) = take(q, 1)
    answer = q.settle([(message, "ack"), (message, "nack")])
    assert answer.settled == 1
    assert refusals(answer) == {message.id: "already_settled"}
    assert counts(q) == {"done": 1}


@pytest.mark.parametrize("verdict", ["swallow", "", Verdict("extend")])  # type: ignore[arg-type]
def test_an_unknown_verdict_is_refused_before_anything_is_done(q: Session, verdict: Any) -> None:
    batch = take(q, 2)
    with pytest.raises(InvalidArgument):
        q.settle([(batch[0], "ack"), (batch[1], verdict)])
    assert counts(q) == {"leased": 2}


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
def test_a_bad_delay_is_refused_before_anything_is_done(q: Session, delay: Any) -> None:
    batch = take(q, 1)
    with pytest.raises(InvalidArgument):
        batch[0].nack(delay=delay)
    assert counts(q) == {"leased": 1}


def test_settling_nothing_settles_nothing(q: Session) -> None:
    assert q.ack([]) == q.settle([]) == q.ack(q.pop("q", group="g")) == Settled()


# atomic


def test_atomic_verdicts_are_all_done_when_none_is_refused(q: Session) -> None:
    batch = take(q, 3)
    answer = q.settle([(batch[0], "ack"), (batch[1], "nack"), (batch[2], "reject")], atomic=True)
    assert answer == Settled(settled=3, noop=0, dead=1, refused=[])
    assert counts(q) == {"done": 1, "ready": 1, "dead": 1}


def test_one_refused_verdict_undoes_all_when_atomic(q: Session) -> None:
    batch = take(q, 5)
    batch[2].release()
    before = counts(q)
    verbs: Sequence[Any] = ("ack", "requeue", "ack", "reject", "nack")
    answer = q.settle(zip(batch, verbs, strict=True), atomic=True)
    assert (answer.settled, answer.noop, answer.dead) == (0, 0, 0)
    others = {batch[i].id: "rolled_back" for i in (0, 1, 3, 4)}
    assert refusals(answer) == {batch[2].id: "already_settled", **others}
    assert counts(q) == before
    assert q.dead_letters("q").items == []
    assert q.ack([batch[i] for i in (0, 1, 3, 4)]).settled == 4


def test_neighbours_of_a_refused_message_also_say_that_they_were_rolled_back(q: Session) -> None:
    batch = take(q, 4)
    batch[1].release()
    answer = q.settle([(m, "ack") for m in batch], atomic=True)
    others = {batch[i].id: "rolled_back" for i in (0, 2, 3)}
    assert refusals(answer) == {batch[1].id: "already_settled", **others}
    assert counts(q) == {"leased": 3, "ready": 1}


def test_atomic_verdicts_hold_over_several_leases(q: Session, clock: VirtualClock) -> None:
    lost, held = take(q, 1, lease_seconds=5), take(q, 1)
    clock.advance(6)
    answer = q.settle([(held[0], "ack"), (lost[0], "ack")], atomic=True)
    assert refusals(answer) == {held[0].id: "rolled_back", lost[0].id: "lease_expired"}
    assert q.ack(held).settled == 1


def test_a_repeated_verdict_is_no_reason_to_undo_the_others(q: Session) -> None:
    batch = take(q, 2)
    batch[0].ack()
    answer = q.settle([(m, "ack") for m in batch], atomic=True)
    assert answer == Settled(settled=1, noop=1, dead=0, refused=[])


# by token alone


def test_some_messages_of_a_lease_are_settled_by_their_ids(q: Session) -> None:
    batch = take(q, 4)
    lease = q.lease(token_of(batch))
    assert lease.ack(batch[0].id, batch[2].id).settled == 2
    assert lease.nack(batch[1].id, reason="boom", delay=7).settled == 1
    assert lease.reject(batch[3].id, reason="bad").dead == 1
    assert counts(q) == {"done": 2, "waiting": 1, "dead": 1}


def test_by_token_alone_a_verb_means_what_is_still_held(q: Session) -> None:
    batch = take(q, 4)
    batch[1].ack()
    answer = q.lease(token_of(batch)).release()
    assert answer == Settled(settled=3, noop=0, dead=0, refused=[])
    assert counts(q) == {"done": 1, "ready": 3}


def test_a_batch_tells_what_of_it_was_settled_otherwise_before(q: Session) -> None:
    batch = take(q, 4)
    batch[1].ack()
    answer = q.nack(batch)
    assert answer.settled == 3
    assert refusals(answer) == {batch[1].id: "already_settled"}


def test_a_message_that_is_not_of_the_lease_is_refused_and_the_lease_stays(q: Session) -> None:
    mine = take(q, 2)
    others = [take(q, 1)[0].id, *q.push("q", 1, partition="p"), *q.push("r", 1)]
    answer = q.lease(token_of(mine)).ack(*others, mine[0].id)
    assert answer.settled == 1
    assert refusals(answer) == dict.fromkeys(others, NotFound.code)
    assert counts(q) == {"done": 1, "leased": 2, "ready": 1}


def test_an_invalid_message_id_is_refused(q: Session) -> None:
    batch = take(q, 1)
    with pytest.raises(InvalidArgument):
        q.lease(token_of(batch)).ack("nonsense")
    assert counts(q) == {"leased": 1}


def test_a_message_raises_what_an_answer_would_tell(q: Session) -> None:
    batch = take(q, 1)
    batch[0].release()
    with pytest.raises(LeaseLost) as raised:
        batch[0].ack()
    assert refusals(q.ack(batch)) == {batch[0].id: raised.value.code}


# confirm, and what holes do


def test_a_confirmed_ack_is_there_after_opening_the_file_again(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "q.db"
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        q.push("q", list(range(4)))
        batch = q.pop("q", group="g", batch=4)
        batch[0].ack(confirm=True)
        assert q.ack([batch[1]], confirm=True).settled == 1
        assert q.lease(token_of(batch)).ack(batch[2].id, confirm=True).settled == 1
    clock.advance(1000)
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        assert [m.data for m in q.pop("q", group="g", batch=4)] == [3]


def test_a_large_batch_settled_with_holes_gives_back_exactly_the_rest(
    q: Session, clock: VirtualClock
) -> None:
    batch = take(q, 2_500)
    assert q.ack([m for m in batch if m.data % 3 == 0]).settled == 834
    assert q.nack([m for m in batch if m.data % 3 == 1], delay=1).settled == 833
    clock.advance(300)
    again = q.pop("q", group="g", batch=3_000)
    assert sorted(m.data for m in again) == [i for i in range(2_500) if i % 3]
    assert {(m.data % 3, m.failures, m.deliveries) for m in again} == {(1, 1, 2), (2, 0, 2)}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_batch_may_be_settled_in_any_order(q: Session, order: list[int]) -> None:
    batch = take(q)
    for index in order:
        batch[index].ack()
    assert counts(q) == {"done": 3}
    assert q.leases("q") == []


@pytest.mark.parametrize("turn", range(5))
def test_copies_of_messages_with_different_counters_follow_each_other_by_sequence(
    q: Session, turn: int
) -> None:
    """They lie in several claims; which is stored first is a matter of chance."""
    q.push("orders", list(range(6)))
    batch = q.pop("orders", batch=6)
    batch[1].nack()
    batch[4].nack()
    batch[5].nack()
    q.release([batch[0], batch[2], batch[3]])
    q.requeue(q.pop("orders", batch=6))
    assert [m.data for m in q.pop("orders", batch=6)] == list(range(6))


@pytest.mark.parametrize("turn", range(5))
def test_the_last_one_consumed_is_the_last_of_a_batch_whatever_its_counters(
    q: Session, turn: int
) -> None:
    q.push("orders", list(range(4)))
    batch = q.pop("orders", batch=4)
    batch[1].nack()
    q.release([batch[0], batch[2], batch[3]])
    q.ack(q.pop("orders", batch=4))
    (progress,) = q.progress("orders")
    assert progress.last_id == batch[3].id
