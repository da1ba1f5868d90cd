"""Batches without Spark: publishing with acks as one commit, verdicts, what is held."""

import pytest

from ackflow import Session, VirtualClock, ids, ranges
from ackflow.broker.readers import commit as batches
from ackflow.broker.readers import verbs as readers
from ackflow.broker.readers.commit import BatchDone
from ackflow.broker.requests import Hold, Mark, SettleOperation, Verdict
from ackflow.errors import LeaseLost, StageMissing, TransactionFailed
from ackflow.session.messages import Message

from .planner import LEASE, Planner, commit, done, popped, stage

pytestmark = pytest.mark.one_database  # input and output of a batch must lie in one

# publishing


def test_a_batch_publishes_and_acks_its_input_at_once(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    assert commit(q, 0, stage(q, 0, "a", "b")) == BatchDone(2, 2)
    assert done(q) == 2
    assert popped(q, "results") == ["a", "b"]


def test_a_batch_published_before_does_nothing(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    commit(q, 0, stage(q, 0, "a"))
    again = Planner(q)
    assert again.data(0, 1) == [1, 2]
    again.bind(0, 1, 0, run="second")
    assert commit(q, 0, stage(q, 0, "a"), run="second").repeated
    assert popped(q, "results") == ["a"]
    assert again.latest(1) == 1


def test_a_batch_whose_lease_ran_out_publishes_nothing(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    name = stage(q, 0, "a")
    clock.advance(LEASE)
    with pytest.raises(LeaseLost, match="2 messages"):
        commit(q, 0, name)
    assert popped(q, "results") == []
    assert done(q) == 0


def test_a_batch_that_lost_one_message_publishes_nothing(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    clock.advance(LEASE)
    assert popped(q, batch=1) == [1]
    planner.keep()
    with pytest.raises(LeaseLost):
        commit(q, 0, stage(q, 0, "a"))


def test_an_older_run_cannot_publish_once_the_batch_was_handed_over_again(q: Session) -> None:
    q.push("orders", [1, 2])
    old = Planner(q)
    old.latest(0)
    old.bind(0, 1, 0)
    name = stage(q, 0, "old")
    new = Planner(q)
    new.partitions(0, 1)
    with pytest.raises(LeaseLost):
        commit(q, 0, name)
    new.bind(0, 1, 0, run="second")
    with pytest.raises(LeaseLost):
        commit(q, 0, name)
    assert commit(q, 0, stage(q, 0, "new"), run="second").settled == 2
    assert popped(q, "results") == ["new"]


def test_planning_again_in_the_same_run_changes_nothing(q: Session) -> None:
    q.push("orders", [1, 2])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    planner.partitions(0, 1)
    assert commit(q, 0, stage(q, 0, "a")).settled == 2


def test_a_missing_stage_settles_nothing(q: Session) -> None:
    q.push("orders", [1])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    with pytest.raises(StageMissing):
        commit(q, 0, "nothing")
    assert done(q) == 0


def test_a_second_run_after_a_loss_publishes_only_what_it_got(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    planner.bind(0, 1, 0)
    clock.advance(LEASE)
    other = q.pop("orders", group="g", batch=1)
    again = Planner(q)
    assert again.data(0, 1) == [2, 3]
    again.bind(0, 1, 0, run="second")
    assert commit(q, 0, stage(q, 0, 2, 3), run="second").settled == 2
    assert q.ack(other).settled == 1


# what does not parse


def test_what_does_not_parse_is_dead_lettered_with_its_batch(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    (lot,) = planner.partitions(0, 1)
    for _ in range(2):
        q.broker.do(
            readers.mark_bad, False, "r1", planner.epoch, 1, lot.lane, lot.token, [1, 2]
        )  # fmt: skip
    assert q.dead_letters("orders").items == []
    planner.latest(1)
    (letter,) = q.dead_letters("orders").items
    assert (letter.data, letter.kind) == (2, "failed")
    assert done(q) == 2


def test_what_does_not_parse_is_dead_lettered_when_its_batch_is_published(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [1, 2, 3])
    planner = Planner(q)
    planner.latest(0)
    (lot,) = planner.partitions(0, 1)
    q.broker.do(readers.mark_bad, False, "r1", planner.epoch, 1, lot.lane, lot.token, [1, 2])
    clock.advance(LEASE)
    again = Planner(q)
    again.partitions(0, 1)
    again.bind(0, 1, 0)
    assert commit(q, 0, stage(q, 0, "a")).settled == 3
    assert [letter.data for letter in q.dead_letters("orders").items] == [2]


# manual mode


@pytest.fixture
def manual(q: Session) -> Planner:
    q.push("orders", list(range(6)))
    planner = Planner(q, manual=True)
    planner.latest(0)
    return planner


def verdicts(messages: list[Message], verb: str, *which: int) -> SettleOperation:
    token = ids.parse_token(messages[0].token or "")
    lane = ids.parse_message_id(messages[0].id).lane
    marks = [Mark(Verdict(verb), lane, [n, n + 1]) for n in which]  # type: ignore[arg-type]
    return SettleOperation(token, marks)


def held(messages: list[Message], *which: int) -> Hold:
    some = verdicts(messages, "ack", *which)
    lane = some.marks[0].lane or 0
    return Hold(some.token, lane, ranges.of(which))


def test_verdicts_and_output_are_one_commit(q: Session, manual: Planner) -> None:
    messages = manual.messages(0, 1)
    manual.bind(0, 1, 0)
    settles = [verdicts(messages, "ack", 0, 1), verdicts(messages, "reject", 2)]
    result = commit(q, 0, stage(q, 0, "a"), settles=settles, holds=[held(messages, 3)])
    assert result.published == 1
    counts = q.group_stats("orders", "g").counts
    assert (counts.done, counts.dead, counts.leased) == (2, 1, 3)
    assert commit(q, 0, settles=settles).repeated


def test_one_refused_verdict_undoes_the_batch(q: Session, manual: Planner) -> None:
    messages = manual.messages(0, 1)
    messages[1].ack()
    with pytest.raises(TransactionFailed):
        commit(q, 0, stage(q, 0, "a"), settles=[verdicts(messages, "ack", 0, 1)])
    assert done(q) == 1
    assert popped(q, "results") == []


def test_what_is_neither_settled_nor_held_has_failed(q: Session, manual: Planner) -> None:
    messages = manual.messages(0, 1)
    q.broker.do(batches.judge, True, [verdicts(messages, "ack", 0, 1, 2)], [held(messages, 3)])
    assert manual.latest(1) == 2
    again = manual.messages(1, 2)
    assert [(m.data, m.failures, m.deliveries) for m in again] == [(4, 1, 2), (5, 1, 2)]


def test_what_is_held_stays_until_it_is_settled(
    q: Session, manual: Planner, clock: VirtualClock
) -> None:
    messages = manual.messages(0, 1)
    acks = verdicts(messages, "ack", 0, 1, 2, 4, 5)
    q.broker.do(batches.judge, True, [acks], [held(messages, 3)])
    assert manual.latest(1) == 1
    assert manual.idle(1)
    for _ in range(5):
        clock.advance(LEASE / 2)
        manual.keep()
    assert popped(q) == []
    messages[3].ack()
    manual.keep()
    assert done(q) == 6


def test_what_is_held_uses_no_window(q: Session) -> None:
    q.group("orders", "g", max_ack_pending=2)
    q.push("orders", list(range(6)))
    planner = Planner(q, manual=True)
    for number, seen in enumerate(([0, 1], [2, 3], [4, 5])):
        assert planner.latest(number) == number + 1
        messages = planner.messages(number, number + 1)
        assert [m.data for m in messages] == seen
        assert q.broker.do(batches.judge, True, [], [held(messages, *seen)]) == 0
    assert planner.latest(3) == 3
    assert q.group_stats("orders", "g").counts.leased == 6


def test_a_new_run_gives_back_what_was_held_uncounted(q: Session, manual: Planner) -> None:
    messages = manual.messages(0, 1)
    acks = verdicts(messages, "ack", 0, 1, 2, 4, 5)
    q.broker.do(batches.judge, True, [acks], [held(messages, 3)])
    manual.latest(1)
    again = Planner(q, 1, manual=True)
    assert again.latest(1) == 2
    (message,) = again.messages(1, 2)
    assert (message.data, message.deliveries, message.redelivered) == (3, 1, True)


def test_holding_what_is_not_held_any_more_is_refused(
    q: Session, manual: Planner, clock: VirtualClock
) -> None:
    messages = manual.messages(0, 1)
    messages[0].ack()
    assert q.broker.do(batches.judge, True, [], [held(messages, 0)]) == 1
    clock.advance(LEASE)
    assert q.broker.do(batches.judge, True, [], [held(messages, 1)]) == 1


def test_held_messages_come_again_when_their_application_died(
    q: Session, manual: Planner, clock: VirtualClock
) -> None:
    q.group("orders", "g", max_ack_pending=6)
    messages = manual.messages(0, 1)
    q.broker.do(batches.judge, True, [], [held(messages, *range(6))])
    clock.advance(LEASE)
    assert popped(q) == [0, 1, 2, 3, 4, 5]
    assert popped(q) == []
