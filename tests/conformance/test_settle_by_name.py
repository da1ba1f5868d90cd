"""Settling by partition and transaction id, with or without a lease."""

from typing import Any

import pytest

from ackflow import Item, Message, Session, VirtualClock, ids
from ackflow.broker.core.pop import WidePop
from ackflow.broker.core.settle import Outcome
from ackflow.broker.requests import PopRequest, Verdict
from ackflow.dialects.queen.errors import AlreadyCommitted
from ackflow.dialects.queen.verbs.settle_by_name import (
    NamedMessage,
    NamedOutcome,
    settle_in_group,
    settle_named,
    transact_named,
)
from ackflow.dialects.queen.verbs.settle_by_name import NamedSettles as ByName
from ackflow.errors import AlreadySettled, LeaseExpired, LeaseLost, NotFound, TransactionFailed
from ackflow.options import QUEUE_MODE

# Only servers call these verbs; the HTTP client has none of them.
pytestmark = pytest.mark.parametrize("open_session", ["memory", "file"], indirect=True)

ACK, NACK, RELEASE = Verdict("ack"), Verdict("nack", "broken"), Verdict("release")
REJECT, DEAD = Verdict("reject", "bad"), Verdict("dead_letter", "bad")


def as_it_stands(
    q: Session, message: str, verdict: Verdict, group: str = QUEUE_MODE, queue: str = "orders"
) -> Outcome:
    def run(tx: Any) -> Outcome:
        place = ids.parse_message_id(message)
        found, lane = tx.queue(queue), tx.lane(place.lane)
        group_row = tx.group(found.id, group)
        return settle_in_group(tx, group_row, lane, place.sequence, verdict, AlreadyCommitted)

    return q.broker.do(run, False)


def home(q: Session, queue: str = "orders", partition: str = "Default") -> int:
    return q.broker.do(lambda tx: int(tx.partition(tx.queue(queue).id, partition).id), False)


def token(message: Message) -> int:
    assert message.token is not None
    return ids.parse_token(message.token)


def told(q: Session, *items: NamedMessage, atomic: bool = False) -> list[NamedOutcome]:
    return q.broker.do(settle_named, False, list(items), atomic)


def refused(outcome: Outcome) -> type[Exception]:
    (part,) = outcome.refused
    return type(part.error)


def counts(q: Session, group: str = QUEUE_MODE) -> tuple[int, int, int, int, int]:
    found = q.group_stats("orders", group).counts
    return found.ready, found.leased, found.waiting, found.dead, found.done


# as it stands


def test_a_leased_message_is_settled_for_any_holder(q: Session) -> None:
    (id,) = q.push("orders", 1)
    (held,) = q.pop("orders")
    assert as_it_stands(q, id, ACK).settled == 1
    assert counts(q) == (0, 0, 0, 0, 1)
    held.ack()  # the same verb again is success


def test_a_message_whose_lease_ran_out_is_settled_where_it_waits(
    q: Session, clock: VirtualClock
) -> None:
    first, second = q.push("orders", [1, 2])
    q.pop("orders", batch=2, lease_seconds=10)
    clock.advance(11)
    assert as_it_stands(q, first, ACK).settled == 1
    assert counts(q) == (1, 0, 0, 0, 1)
    (again,) = q.pop("orders", batch=2)
    assert (again.id, again.deliveries) == (second, 2)


def test_a_message_that_waits_for_its_retry_is_settled(q: Session) -> None:
    (id,) = q.push("orders", 1)
    (message,) = q.pop("orders")
    message.nack("later", delay=60)
    assert as_it_stands(q, id, ACK).settled == 1
    assert counts(q) == (0, 0, 0, 0, 1)
    assert "acknowledged" in q.why("orders", id).sentence


def test_what_a_settled_message_held_back_comes_now(q: Session) -> None:
    first, second = q.push("orders", [1, 2])
    q.group("orders", "g", ordering="ordered")
    (message,) = q.pop("orders", group="g")
    message.nack("later", delay=60)
    assert not q.pop("orders", group="g")
    as_it_stands(q, first, ACK, "g")
    assert [m.id for m in q.pop("orders", group="g")] == [second]


def test_a_failure_as_it_stands_counts_like_any_other(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    for _ in range(2):
        q.pop("orders", lease_seconds=5)
        clock.advance(6)
        assert as_it_stands(q, id, NACK).settled == 1
    (message,) = q.pop("orders")
    assert (message.deliveries, message.failures) == (3, 2)
    assert as_it_stands(q, id, NACK).dead == 1
    assert counts(q) == (0, 0, 0, 1, 0)


def test_a_release_as_it_stands_counts_nothing(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", lease_seconds=5)
    clock.advance(6)
    as_it_stands(q, id, RELEASE)
    (message,) = q.pop("orders")
    assert (message.deliveries, message.failures) == (2, 0)


@pytest.mark.parametrize("verdict", [REJECT, DEAD])
def test_a_message_that_came_back_can_be_dead_lettered(q: Session, verdict: Verdict) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].release()
    assert as_it_stands(q, id, verdict).dead == 1
    (letter,) = q.dead_letters("orders").items
    assert (letter.message_id, letter.reason) == (id, "bad")


@pytest.mark.parametrize("verdict", [ACK, NACK, RELEASE, REJECT, DEAD])
def test_a_message_never_handed_out_is_not_found(q: Session, verdict: Verdict) -> None:
    q.pop("orders")
    (id,) = q.push("orders", 1)
    assert refused(as_it_stands(q, id, verdict)) is NotFound
    assert counts(q) == (1, 0, 0, 0, 0)


def test_a_delayed_message_before_its_first_delivery_is_not_found(q: Session) -> None:
    (id,) = q.push("orders", 1, delay=60)
    assert not q.pop("orders")
    assert refused(as_it_stands(q, id, ACK)) is NotFound


def test_an_ack_of_what_is_done_is_a_repeat(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].ack()
    assert as_it_stands(q, id, ACK).noop == 1


@pytest.mark.parametrize("verdict", [NACK, RELEASE, REJECT, DEAD])
def test_any_other_verb_on_what_is_done_is_refused(q: Session, verdict: Verdict) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", auto_ack=True)
    assert refused(as_it_stands(q, id, verdict)) is AlreadyCommitted
    assert counts(q) == (0, 0, 0, 0, 1)


def test_a_dead_letter_stays_dead(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders")[0].reject("bad")
    assert as_it_stands(q, id, NACK).noop == 1
    assert refused(as_it_stands(q, id, ACK)) is AlreadySettled
    assert refused(as_it_stands(q, id, RELEASE)) is AlreadySettled


def test_groups_are_settled_apart(q: Session) -> None:
    (id,) = q.push("orders", 1)
    q.pop("orders", group="a")
    q.pop("orders", group="b")
    as_it_stands(q, id, ACK, "a")
    assert counts(q, "a") == (0, 0, 0, 0, 1)
    assert counts(q, "b") == (0, 1, 0, 0, 0)


# by name


@pytest.mark.every_store
def test_a_message_is_found_by_its_transaction_id_or_its_own(q: Session) -> None:
    q.push("orders", [Item(data=1, transaction_id="a"), Item(data=2)])
    first, second = q.pop("orders", batch=2)
    items = [
        NamedMessage(home(q), "a", ACK, token=token(first)),
        NamedMessage(home(q), second.id, ACK, token=token(second)),
    ]
    assert [(t.error, t.noop, t.queue, t.partition) for t in told(q, *items)] == [
        (None, False, "orders", "Default")
    ] * 2
    assert counts(q) == (0, 0, 0, 0, 2)


def test_the_same_transaction_id_in_two_partitions_names_two_messages(q: Session) -> None:
    for partition in ("a", "b"):
        q.push("orders", Item(data=partition, partition=partition, transaction_id="same"))
    messages = q.pop("orders", batch=2)
    (one,) = told(q, NamedMessage(home(q, partition="b"), "same", ACK, token=token(messages[0])))
    assert (one.error, one.partition) == (None, "b")
    with pytest.raises(AlreadySettled):
        next(m for m in messages if m.partition == "b").nack()
    next(m for m in messages if m.partition == "a").nack()


@pytest.mark.parametrize("many", [1, 40])
def test_a_copy_is_found_by_the_id_of_its_original_under_its_own_lease(
    q: Session, many: int
) -> None:
    q.push("orders", list(range(many)))
    for message in q.pop("orders", batch=many):
        message.reject("bad")
    q.redrive("orders")
    copies = q.pop("orders", batch=many)
    names = [NamedMessage(home(q), copy.transaction_id, ACK, token=token(copy)) for copy in copies]
    assert [one.error for one in told(q, *names)] == [None] * many
    assert q.group_stats("orders", QUEUE_MODE).consumed == many


def test_many_messages_of_one_lease_each_get_their_own_answer(q: Session) -> None:
    q.push("orders", [Item(data=n, transaction_id=str(n)) for n in range(20)])
    messages = q.pop("orders", batch=20)
    messages[3].ack()
    messages[4].nack()
    items = [NamedMessage(home(q), str(n), ACK, token=token(messages[0])) for n in range(21)]
    answers = told(q, *items)
    assert [n for n, one in enumerate(answers) if one.noop] == [3]
    assert {n: type(one.error) for n, one in enumerate(answers) if one.error} == {
        4: AlreadySettled,
        20: NotFound,
    }
    assert [n for n, one in enumerate(answers) if one.released] == [20]


def test_a_lease_that_is_over_foreign_or_unknown_is_lost(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [Item(data=n, transaction_id=str(n)) for n in range(2)])
    (late,) = q.pop("orders", lease_seconds=5)
    clock.advance(6)
    q.pop("orders")
    (other,) = q.pop("orders")
    answers = told(
        q,
        NamedMessage(home(q), "0", ACK, token=token(late)),
        NamedMessage(home(q), "0", ACK, token=token(other)),
        NamedMessage(home(q), "0", ACK, token=12345),
        NamedMessage(home(q), "0", ACK, stale=True),
        NamedMessage(None, "0", ACK, token=token(other)),
    )
    assert [type(one.error) for one in answers] == [
        LeaseExpired, LeaseLost, LeaseLost, LeaseLost, NotFound
    ]  # fmt: skip
    assert counts(q) == (0, 2, 0, 0, 0)


@pytest.mark.every_store
def test_an_atomic_batch_is_undone_by_one_refusal(q: Session) -> None:
    q.push("orders", [Item(data=n, transaction_id=str(n)) for n in range(2)])
    messages = q.pop("orders", batch=2)
    items = [
        NamedMessage(home(q), name, ACK, token=token(messages[0])) for name in ("0", "1", "none")
    ]
    answers = told(q, *items, atomic=True)
    assert [one.error.code for one in answers if one.error] == [
        "rolled_back", "rolled_back", "not_found"
    ]  # fmt: skip
    assert counts(q) == (0, 2, 0, 0, 0)
    assert [one.error for one in told(q, *items[:2], atomic=True)] == [None, None]


def test_a_lease_is_kept_alive_through_one_of_its_messages(q: Session, clock: VirtualClock) -> None:
    q.push("orders", Item(data=1, transaction_id="a"))
    (message,) = q.pop("orders", lease_seconds=10)
    clock.advance(5)
    (by_lease,) = told(q, NamedMessage(home(q), "a", None, token=token(message)))
    assert by_lease.until == clock.now() + 300_000_000
    clock.advance(100)
    (by_name,) = told(q, NamedMessage(home(q), "a", None))
    assert by_name.until == clock.now() + 300_000_000
    message.ack()
    assert isinstance(told(q, NamedMessage(home(q), "a", None))[0].error, LeaseLost)


def test_a_message_that_was_deleted_is_not_found(q: Session) -> None:
    (id,) = q.push("orders", Item(data=1, transaction_id="a"))
    q.pop("orders")[0].release()
    q.delete_message("orders", id)
    assert [type(told(q, NamedMessage(home(q), n, ACK))[0].error) for n in ("a", id)] == [
        NotFound
    ] * 2


# transactions


def test_an_ack_without_a_lease_is_fenced_by_the_required_ones(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", [Item(data=n, transaction_id=str(n)) for n in range(2)])
    (mine,) = q.pop("orders", lease_seconds=5)
    (other,) = q.pop("orders", lease_seconds=50)

    def run(name: str, *leases: Message) -> Any:
        work = [ByName([NamedMessage(home(q), name, ACK)])]
        return q.broker.do(transact_named, True, work, [token(lease) for lease in leases])

    with pytest.raises(TransactionFailed):
        run("0", other)
    assert run("0", other, mine)[0].settled == 1
    with pytest.raises(TransactionFailed, match="no longer held"):
        run("1", mine)
    clock.advance(60)
    with pytest.raises(TransactionFailed, match="no longer held"):
        run("1", other)
    assert run("1")[0].settled == 1


# a failure in an ordered group yields what follows


def ordered(q: Session, n: int) -> list[Message]:
    q.push("orders", list(range(n)))
    return list(q.pop("orders", group="g", batch=n, dialect="queen"))


def fail(q: Session, message: Message, verb: str = "nack", delay: float | None = None) -> None:
    verdict = Verdict(verb, delay=delay, yields=True)  # type: ignore[arg-type]
    assert not told(q, NamedMessage(home(q), message.id, verdict, token=token(message)))[0].error


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_the_next_pop_takes_over_what_follows_a_failure(q: Session, verb: str) -> None:
    first, second, third = ordered(q, 3)
    first.ack()
    fail(q, second, verb)
    taken = q.pop("orders", group="g", batch=9)
    assert [m.data for m in taken] == [1, 2]
    assert [m.deliveries for m in taken] == [2 if verb == "nack" else 1, 1]
    with pytest.raises(LeaseLost):
        third.ack()


def test_until_then_the_holder_may_go_on(q: Session) -> None:
    first, second, third = ordered(q, 3)
    fail(q, first)
    second.ack()
    third.ack()
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == [0]


def test_what_comes_before_a_failure_keeps_the_partition(q: Session) -> None:
    first, second, third = ordered(q, 3)
    fail(q, second)
    assert not q.pop("orders", group="g", batch=9)
    first.ack()
    third.ack()
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == [1]


def test_a_failure_that_waits_holds_back_what_follows(q: Session, clock: VirtualClock) -> None:
    first, _, _ = ordered(q, 3)
    fail(q, first, delay=30)
    assert not q.pop("orders", group="g", batch=9)
    clock.advance(30)
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == [0, 1, 2]


def test_a_failure_with_nothing_after_it_yields_nothing(q: Session) -> None:
    first, second = ordered(q, 2)
    fail(q, second)
    assert not q.pop("orders", group="g", batch=9)
    first.ack()
    assert [m.data for m in q.pop("orders", group="g", batch=9)] == [1]


# how the retry limit is read


@pytest.mark.parametrize(("counting", "attempts"), [("failures", 3), ("redeliveries", 4)])
def test_the_retry_limit_counts_failures_or_redeliveries(
    q: Session, counting: Any, attempts: int
) -> None:
    q.push("orders", 1)
    verdict = Verdict("nack", counting=counting)
    for attempt in range(1, attempts + 1):
        (message,) = q.pop("orders")
        outcome = as_it_stands(q, message.id, verdict)
        assert outcome.dead == (attempt == attempts)
    assert not q.pop("orders")


# pops from many queues


def wide(q: Session, wait: float = 0.0, batch: int = 1, **options: Any) -> list[str]:
    asked = {"group": QUEUE_MODE, "consumer": "c", "dialect": "queen", **options}
    request = WidePop(queue="", batch=batch, **asked)
    return [
        run.partition for run in q.broker.pop(request, wait).runs for _ in range(run.lo, run.hi)
    ]


@pytest.mark.every_store
def test_queues_of_a_namespace_are_asked_in_turn(q: Session) -> None:
    for queue in ("shop.orders", "shop.bills", "mail.orders", "plain"):
        q.push(queue, [Item(data=n, partition=queue) for n in range(3)])
    popped = [wide(q, namespace="shop", group="g")[0] for _ in range(2)]
    assert sorted(popped) == ["shop.bills", "shop.orders"]
    assert wide(q, namespace="shop", group="g") == []  # both partitions are leased
    assert sorted(wide(q, task="orders")[0] for _ in range(2)) == ["mail.orders", "shop.orders"]
    assert wide(q, namespace="shop", task="mails") == []


def test_queues_with_one_lane_each_take_turns(q: Session) -> None:
    for queue in ("shop.orders", "shop.bills"):
        q.push(queue, [Item(data=n, partition=queue) for n in range(3)])
    popped = [wide(q, namespace="shop", auto_ack=True)[0] for _ in range(4)]
    assert popped[:2] == popped[2:]
    assert popped[0] != popped[1]


def test_of_many_queues_the_one_with_the_highest_priority_comes_first(q: Session) -> None:
    q.push("shop.low", Item(data=1, partition="low"))
    q.push("shop.high", [Item(data=n, partition="high") for n in range(2)])
    q.configure("shop.high", priority=5)
    assert [wide(q, namespace="shop", auto_ack=True)[0] for _ in range(3)] == [
        "high", "high", "low"
    ]  # fmt: skip


def test_a_new_group_begins_in_every_queue_of_the_namespace_at_once(q: Session) -> None:
    q.push("shop.a", Item(data=1, partition="a"))
    q.push("shop.b", Item(data=1, partition="b"))
    assert wide(q, namespace="shop", group="late", start="new") == []
    q.push("shop.b", Item(data=2, partition="b"))
    assert wide(q, namespace="shop", group="late") == ["b"]


def test_a_queue_that_may_not_be_asked_is_left_alone(q: Session) -> None:
    q.push("shop.a", 1)
    assert wide(q, namespace="shop", among=lambda name: name != "shop.a") == []
    assert q.queue_stats("shop.a").groups == []


# where a new group begins


@pytest.mark.parametrize(
    ("start", "read"), [("all", [1, 2, 3]), ("new", [3]), (1_700_000_005_000_000, [2, 3])]
)
def test_the_first_pop_of_a_group_decides_where_it_begins(
    q: Session, clock: VirtualClock, start: Any, read: list[int]
) -> None:
    q.push("orders", 1)
    clock.advance(10)
    q.push("orders", 2)

    def pop(begin: Any, group: str = "g") -> list[int]:
        asked = PopRequest("orders", group, "c", batch=9, auto_ack=True, start=begin)
        runs = q.broker.pop(asked).runs
        return [
            run.body.data[seq - run.first] - 48 for run in runs for seq in range(run.lo, run.hi)
        ]

    seen = pop(start)
    q.push("orders", 3)
    assert seen + pop("all" if start == "new" else "new") == read


def test_without_a_group_there_is_nothing_to_skip(q: Session) -> None:
    q.push("orders", 1)
    assert q.broker.pop(PopRequest("orders", QUEUE_MODE, "c", start="new")).runs
