"""Rule 1: a hand-out is fenced by its token, and a lease is over when its time is over."""

from collections.abc import Callable, Iterable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ackflow
from ackflow import Batch, Item, Message, Session, Settled, VirtualClock, ids
from ackflow.errors import AlreadySettled, InvalidArgument, LeaseExpired, LeaseLost

VERBS = ["ack", "nack", "release", "requeue", "reject", "dead_letter"]
WITH_EXTEND = [*VERBS, "extend"]
LEASE = 300


def counts(q: Session, group: str = "g") -> dict[str, int]:
    """The counts of a group, without those that are 0."""
    found = msgspec.structs.asdict(q.group_stats("q", group).counts)
    return {name: n for name, n in found.items() if n}


def take(q: Session, n: int = 1, **options: Any) -> Batch[Message]:
    """Push n numbers and lease them."""
    q.push("q", list(range(n)))
    batch = q.pop("q", group="g", batch=n, **options)
    assert len(batch) == n
    return batch


def each_row(q: Session, check: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
    """Check every row of a table on a new queue, and name all that fail."""
    failed = []
    for row in rows:
        try:
            check(*row)
        except (Exception, pytest.fail.Exception) as problem:
            failed.append(f"{row}: {problem!r}")
        q.delete_queue("q")
    assert not failed, "\n".join(failed)


def say(message: Message, verb: str) -> None:
    getattr(message, verb)()


def is_refused_as_lost(settle: Callable[[], Settled]) -> bool:
    """Whether a call is refused, by an error or by refusals in its answer."""
    try:
        answer = settle()
    except LeaseLost:
        return True
    return bool(answer.refused) and answer.settled == 0


# a lease is over when its time is over


@pytest.mark.parametrize("verb", WITH_EXTEND)
def test_a_late_verb_is_refused_also_before_the_message_is_handed_out_again(
    q: Session, clock: VirtualClock, verb: str
) -> None:
    (message,) = take(q)
    clock.advance(LEASE + 1)
    with pytest.raises(LeaseExpired):
        say(message, verb)
    (again,) = q.pop("q", group="g")
    assert (again.id, again.deliveries, again.failures) == (message.id, 2, 0)
    assert q.dead_letters("q").items == []
    again.ack()


@pytest.mark.parametrize("verb", WITH_EXTEND)
def test_a_late_verb_is_refused_after_upkeep_noticed_the_end(
    q: Session, clock: VirtualClock, verb: str
) -> None:
    (message,) = take(q)
    clock.advance(LEASE + 1)
    q.upkeep()
    before = counts(q)
    with pytest.raises(LeaseExpired):
        say(message, verb)
    assert counts(q) == before == {"ready": 1}


@pytest.mark.every_store
@pytest.mark.parametrize("verb", WITH_EXTEND)
def test_a_late_verb_does_not_touch_the_next_holder(
    q: Session, clock: VirtualClock, verb: str
) -> None:
    (stale,) = take(q)
    clock.advance(LEASE)
    (fresh,) = q.pop("q", group="g")
    end = q.leases("q")[0].expires_at
    with pytest.raises(LeaseExpired):
        say(stale, verb)
    assert counts(q) == {"leased": 1}
    assert [lease.expires_at for lease in q.leases("q")] == [end]
    fresh.ack()
    assert counts(q) == {"done": 1}
    with pytest.raises(LeaseExpired):
        say(stale, verb)
    assert counts(q) == {"done": 1}


@pytest.mark.every_store
def test_a_lease_is_held_to_the_last_microsecond_and_no_longer(
    q: Session, clock: VirtualClock
) -> None:
    def check(verb: str, after: float, held: bool) -> None:
        (message,) = take(q)
        clock.advance(after)
        if held:
            say(message, verb)
        else:
            with pytest.raises(LeaseExpired):
                say(message, verb)

    times = [(LEASE - 0.000001, True), (LEASE, False), (LEASE + 0.000001, False)]
    each_row(q, check, [(verb, *time) for verb in WITH_EXTEND for time in times])


@pytest.mark.parametrize(("after", "given"), [(LEASE - 0.000001, 0), (LEASE, 1)])
def test_a_message_is_not_handed_out_again_before_its_lease_is_over(
    q: Session, clock: VirtualClock, after: float, given: int
) -> None:
    take(q)
    clock.advance(after)
    assert len(q.pop("q", group="g")) == given


def test_an_extended_lease_is_held_until_its_new_end(q: Session, clock: VirtualClock) -> None:
    (message,) = take(q)
    clock.advance(LEASE - 1)
    message.extend(1000)
    clock.advance(999.9)
    assert not q.pop("q", group="g")
    clock.advance(0.1)
    with pytest.raises(LeaseExpired):
        message.ack()


def test_an_expired_batch_is_refused_message_by_message(q: Session, clock: VirtualClock) -> None:
    batch = take(q, 3)
    batch[1].ack()
    clock.advance(LEASE)
    answer = q.ack(batch)
    assert (answer.settled, answer.noop) == (0, 1)
    refused = {refusal.message_id: refusal.code for refusal in answer.refused}
    assert refused == dict.fromkeys((batch[0].id, batch[2].id), LeaseExpired.code)


# what else makes a token stale


def released(q: Session, message: Message) -> None:
    message.release()
    q.pop("q", group="g")


def nacked(q: Session, message: Message) -> None:
    message.nack()
    q.pop("q", group="g")


def sought(q: Session, message: Message) -> None:
    q.seek("q", "g", to="start")


def sought_past(q: Session, message: Message) -> None:
    q.seek("q", "g", to="end")


def purged(q: Session, message: Message) -> None:
    q.purge("q")


def deleted(q: Session, message: Message) -> None:
    q.delete_message("q", message.id)


def without_its_group(q: Session, message: Message) -> None:
    q.delete_group("q", "g")
    q.group("q", "g")


def without_its_queue(q: Session, message: Message) -> None:
    q.delete_queue("q")
    q.push("q", "new")
    q.group("q", "g")


OTHER_ENDS = [released, nacked, sought, sought_past, purged, deleted, without_its_group,
              without_its_queue]  # fmt: skip


@pytest.mark.every_store
def test_a_token_ended_by_something_else_changes_nothing_and_says_so(q: Session) -> None:
    def check(end: Callable[[Session, Message], None], verb: str) -> None:
        (message,) = take(q)
        end(q, message)
        before = counts(q), q.leases("q")
        with pytest.raises(LeaseLost):
            say(message, verb)
        assert (counts(q), q.leases("q")) == before
        assert q.dead_letters("q").items == []

    verbs = ["ack", "requeue", "reject", "dead_letter", "extend"]
    each_row(q, check, product(OTHER_ENDS, verbs))


# repeated and contradicting verbs


@pytest.mark.every_store
@pytest.mark.parametrize("verb", VERBS)
def test_the_same_verb_again_is_success_without_effect(q: Session, verb: str) -> None:
    batch = take(q)
    say(batch[0], verb)
    before, dead = counts(q), len(q.dead_letters("q").items)
    say(batch[0], verb)
    answer = getattr(q, verb)(batch)
    assert answer == Settled(settled=0, noop=1, dead=0, refused=[])
    assert (counts(q), len(q.dead_letters("q").items)) == (before, dead)


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_verb_again_is_success_also_after_the_lease_would_have_ended(
    q: Session, clock: VirtualClock, verb: str
) -> None:
    (message,) = take(q)
    say(message, verb)
    clock.advance(LEASE + 1)
    before = counts(q)
    say(message, verb)
    assert counts(q) == before


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_the_same_verb_again_does_not_touch_the_next_holder(q: Session, verb: str) -> None:
    (message,) = take(q)
    say(message, verb)
    (again,) = q.pop("q", group="g")
    say(message, verb)
    assert counts(q) == {"leased": 1}
    again.ack()


def test_a_nack_that_dead_lettered_may_be_repeated(q: Session) -> None:
    q.group("q", "g", retry_limit=1)
    (message,) = take(q)
    message.nack("boom")
    message.nack("boom")
    assert len(q.dead_letters("q").items) == 1
    assert counts(q) == {"dead": 1}


@pytest.mark.every_store
def test_a_different_second_verb_is_refused(q: Session) -> None:
    def check(first: str, second: str) -> None:
        (message,) = take(q)
        say(message, first)
        before, dead = counts(q), len(q.dead_letters("q").items)
        with pytest.raises(AlreadySettled):
            say(message, second)
        assert (counts(q), len(q.dead_letters("q").items)) == (before, dead)

    each_row(q, check, permutations(VERBS, 2))


@pytest.mark.parametrize("first", VERBS)
def test_a_settled_lease_cannot_be_extended(q: Session, first: str) -> None:
    (message,) = take(q)
    say(message, first)
    with pytest.raises(LeaseLost):
        message.extend()


def test_a_partly_settled_lease_is_extended_for_the_rest(q: Session, clock: VirtualClock) -> None:
    batch = take(q, 2)
    batch[0].ack()
    batch[1].extend(1000)
    clock.advance(999)
    batch[1].ack()
    assert counts(q) == {"done": 2}


def test_what_rest_released_is_settled_by_release(q: Session) -> None:
    batch = take(q, 3)
    batch[0].nack(rest=True)
    batch[1].release()
    with pytest.raises(AlreadySettled):
        batch[2].ack()


def test_what_up_to_acked_is_settled_by_ack(q: Session) -> None:
    batch = take(q, 3)
    batch[2].ack(up_to=True)
    batch[0].ack()
    with pytest.raises(AlreadySettled):
        batch[1].nack()


def test_a_repeated_ack_under_policy_all_leaves_what_was_handed_out_since_alone(
    q: Session, clock: VirtualClock
) -> None:
    q.group("q", "g", policy="all")
    q.push("q", [Item(data="delayed", delay=10), 1, 2])
    batch = q.pop("q", group="g", batch=3)
    batch[-1].ack()
    clock.advance(10)
    (late,) = q.pop("q", group="g")
    batch[-1].ack()
    assert counts(q) == {"done": 2, "leased": 1}
    late.nack()


def test_a_repeated_ack_under_policy_all_leaves_what_was_sought_back_alone(q: Session) -> None:
    q.group("q", "g", policy="all")
    (old,) = take(q)
    old.ack()
    q.seek("q", "g", to="start")
    (new,) = q.pop("q", group="g")
    old.ack()
    assert counts(q) == {"leased": 1}
    new.nack()


# tokens


@pytest.mark.every_store
def test_no_token_is_given_twice(q: Session) -> None:
    q.push("q", "a")
    tokens = set()
    for _ in range(300):
        (message,) = q.pop("q", group="g")
        tokens.add(message.token)
        message.release()
    assert len(tokens) == 300


@pytest.mark.every_store
def test_both_written_forms_of_a_token_are_the_same_lease(q: Session) -> None:
    batch = take(q, 2)
    assert batch.token is not None
    uuid = ids.token_uuid(ids.parse_token(batch.token))
    assert q.lease(uuid).ack(batch[0].id).settled == 1
    assert q.lease(batch.token).ack(batch[1].id).settled == 1


@pytest.mark.every_store
@pytest.mark.parametrize("verb", VERBS)
def test_a_message_of_another_database_is_not_part_of_a_lease(q: Session, verb: str) -> None:
    batch = take(q)
    assert batch.token is not None
    place = ids.parse_message_id(batch[0].id)
    foreign = ids.message_id(place.store ^ 1, place.lane, place.sequence)
    answer = getattr(q.lease(batch.token), verb)(foreign)
    assert [(part.message_id, part.code) for part in answer.refused] == [(foreign, "not_found")]
    assert answer.settled == 0
    assert counts(q) == {"leased": 1}


@pytest.mark.every_store
@pytest.mark.parametrize("verb", VERBS)
def test_a_token_that_never_was_says_so(q: Session, verb: str) -> None:
    batch = take(q)
    stranger = q.lease(ids.token_text(ids.new_token()))
    assert is_refused_as_lost(lambda: getattr(stranger, verb)(batch[0].id))
    assert counts(q) == {"leased": 1}


@pytest.mark.parametrize("verb", VERBS)
def test_a_token_that_never_was_says_so_also_without_ids(q: Session, verb: str) -> None:
    take(q)
    stranger = q.lease(ids.token_text(ids.new_token()))
    assert is_refused_as_lost(getattr(stranger, verb))
    assert counts(q) == {"leased": 1}


def test_a_token_that_never_was_cannot_be_extended(q: Session) -> None:
    with pytest.raises(LeaseLost):
        q.lease(ids.token_text(ids.new_token())).extend()


@pytest.mark.parametrize("text", ["", "no token", "0" * 11 + "=", 7, None])
def test_an_invalid_token_is_refused(q: Session, text: Any) -> None:
    with pytest.raises(InvalidArgument):
        q.lease(text)


def test_every_session_of_a_file_sees_the_same_fence(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "q.db"
    with (
        ackflow.connect(path, clock=clock, upkeep=False) as one,
        ackflow.connect(path, clock=clock, upkeep=False) as two,
    ):
        batch = take(one, 3)
        assert batch.token is not None
        there = two.lease(batch.token)
        assert there.ack(batch[0].id).settled == 1
        assert there.release(batch[1].id).settled == 1
        batch[0].ack()
        with pytest.raises(AlreadySettled):
            batch[1].ack()
        (again,) = two.pop("q", group="g")
        assert again.id == batch[1].id
        there.extend(1000)
        clock.advance(LEASE)
        batch[2].ack()
        with pytest.raises(LeaseExpired):
            again.ack()
        assert counts(one) == counts(two) == {"done": 2, "ready": 1}


# how long the fence remembers


def test_a_late_ack_says_that_the_lease_expired_for_its_history(
    q: Session, clock: VirtualClock
) -> None:
    (message,) = take(q)
    clock.advance(LEASE + 599)
    q.upkeep()
    with pytest.raises(LeaseExpired):
        message.ack()


def test_a_repeat_within_the_history_is_success(q: Session, clock: VirtualClock) -> None:
    (message,) = take(q)
    message.ack()
    clock.advance(599)
    q.upkeep()
    message.ack()


def test_a_message_of_a_forgotten_lease_is_lost(q: Session, clock: VirtualClock) -> None:
    (message,) = take(q)
    message.ack()
    clock.advance(601)
    q.upkeep()
    with pytest.raises(LeaseLost):
        message.nack()
    assert counts(q) == {"done": 1}


def test_a_batch_of_a_forgotten_lease_says_so(q: Session, clock: VirtualClock) -> None:
    batch = take(q, 3)
    clock.advance(LEASE + 601)
    q.upkeep()
    answer = q.ack(batch)
    assert answer.settled == 0
    assert {refusal.message_id for refusal in answer.refused} == {m.id for m in batch}
    assert counts(q) == {"ready": 3}


def test_the_history_is_at_least_five_minutes(q: Session) -> None:
    with pytest.raises(InvalidArgument):
        q.configure("q", history_seconds=299)
    assert q.configure("q", history_seconds=300).history_seconds == 300


# nothing to settle


@pytest.mark.parametrize("verb", WITH_EXTEND)
@pytest.mark.parametrize("auto_ack", [True, False])
def test_without_a_lease_every_verb_is_success_without_effect(
    q: Session, clock: VirtualClock, auto_ack: bool, verb: str
) -> None:
    q.group("q", "g", policy="explicit" if auto_ack else "none")
    q.push("q", [1, 2])
    batch = q.pop("q", group="g", batch=2, auto_ack=auto_ack)
    say(batch[0], verb)
    getattr(q, verb)(batch)
    if verb != "extend":
        assert q.settle([(batch[1], verb)]).refused == []  # type: ignore[list-item]
    clock.advance(10_000)
    assert counts(q) == {"done": 2}
    assert not q.pop("q", group="g")
    assert q.dead_letters("q").items == []
