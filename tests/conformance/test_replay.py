"""A lease can be read again: by its token, or by repeating the pop that brought its own token."""

import pytest

from ackflow import Batch, Item, Message, Session, VirtualClock, ids
from ackflow.errors import InvalidArgument, LeaseExpired, LeaseLost

pytestmark = pytest.mark.every_store

TOKEN = "AAAAAAAAAAA"
OTHER = "BBBBBBBBBBA"


def seen(batch: Batch[Message]) -> list[object]:
    """Everything a consumer sees of a batch."""
    return [
        (m.id, m.raw, m.partition, m.priority, m.deliveries, m.failures, m.redelivered,
         m.headers, m.transaction_id, m.token, m.lease_expires_at, m.created_at)
        for m in batch
    ]  # fmt: skip


# read


def test_reading_a_lease_gives_the_same_messages(q: Session) -> None:
    q.push("orders", [Item(data=1, headers={"h": "v"}), b"raw", Item(data=3, transaction_id="t")])
    batch = q.pop("orders", batch=3)
    assert batch.token is not None
    again = q.read(batch.token)
    assert seen(again) == seen(batch)
    assert (again.token, again.expires_at) == (batch.token, batch.expires_at)


def test_reading_changes_nothing(q: Session) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    before = q.group_stats("orders")
    for _ in range(3):
        assert batch.token is not None
        q.read(batch.token)
    assert q.group_stats("orders") == before
    assert q.ack(batch).settled == 2


def test_reading_gives_all_of_a_lease_settled_meanwhile_or_not(q: Session) -> None:
    q.push("orders", list(range(6)))
    batch = q.pop("orders", batch=6)
    batch[0].ack()
    batch[1].nack(delay=60)
    batch[2].reject()
    batch[3].release()
    batch[4].requeue()
    assert batch.token is not None
    again = q.read(batch.token)
    assert [m.data for m in again] == [0, 1, 2, 3, 4, 5]
    again[5].ack()
    assert [m.data for m in q.read(batch.token)] == [0, 1, 2, 3, 4, 5]


def test_a_lease_over_many_lanes_is_read_in_the_same_order(q: Session) -> None:
    for n in range(30):
        q.push("orders", n, partition=f"p{n % 5}", priority=n % 3)
    batch = q.pop("orders", batch=30)
    assert len(batch) == 30
    assert batch.token is not None
    assert seen(q.read(batch.token)) == seen(batch)


def test_a_large_lease_is_read_whole(q: Session) -> None:
    q.push("orders", list(range(2500)))
    batch = q.pop("orders", batch=2500)
    q.ack(batch[100:200])
    assert batch.token is not None
    assert [m.id for m in q.read(batch.token)] == [m.id for m in batch]


def test_messages_come_in_their_order_whatever_befell_them(q: Session) -> None:
    q.push("orders", [0, 1, 2, 3])
    zero, one, two, three = q.pop("orders", batch=4)
    zero.nack("a")
    one.release()
    two.nack("b")
    three.nack("a")
    batch = q.pop("orders", batch=4)
    assert batch.token is not None
    assert [m.data for m in batch] == [0, 1, 2, 3]
    assert [m.data for m in q.read(batch.token)] == [0, 1, 2, 3]


def test_a_lease_read_again_can_be_settled(q: Session) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    assert batch.token is not None
    q.read(batch.token)[0].ack()
    batch[0].ack()
    assert q.ack(q.read(batch.token)).settled == 1
    assert q.group_stats("orders").counts.done == 2


def test_both_written_forms_of_a_token_read_a_lease(q: Session) -> None:
    q.push("orders", 1)
    batch = q.pop("orders")
    assert batch.token is not None
    as_uuid = ids.token_uuid(ids.parse_token(batch.token))
    assert seen(q.read(as_uuid)) == seen(batch)


def test_a_lease_that_ran_out_can_be_read_and_not_settled(q: Session, clock: VirtualClock) -> None:
    q.push("orders", 1)
    batch = q.pop("orders")
    clock.advance(300)
    assert batch.token is not None
    again = q.read(batch.token)
    assert [m.data for m in again] == [1]
    with pytest.raises(LeaseExpired):
        again[0].ack()


def test_an_unknown_token_is_a_lost_lease(q: Session) -> None:
    with pytest.raises(LeaseLost):
        q.read(TOKEN)


def test_reading_by_the_lease_object_is_the_same(q: Session) -> None:
    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    assert batch.token is not None
    assert seen(q.lease(batch.token).read()) == seen(batch)


def test_the_number_of_a_hand_out_is_the_same_when_read_again(q: Session) -> None:
    q.push("orders", [1, 2, 3, 4])
    first = q.pop("orders", batch=2)
    q.pop("orders", batch=2)
    assert first.token is not None
    numbers = [m.metadata.sequence for m in first]
    assert [m.metadata.sequence for m in q.read(first.token)] == numbers


# pop with a token of one's own


def test_a_repeated_pop_with_its_own_token_gives_the_same_lease(
    q: Session, clock: VirtualClock
) -> None:
    q.push("orders", list(range(5)))
    first = q.pop("orders", batch=3, token=TOKEN)
    assert (first.token, len(first)) == (TOKEN, 3)
    clock.advance(100)
    again = q.pop("orders", batch=3, token=TOKEN)
    assert seen(again) == seen(first)
    counts = q.group_stats("orders").counts
    assert (counts.leased, counts.ready) == (3, 2)
    assert q.group_stats("orders").delivered == 3
    assert len(q.leases("orders")) == 1


def test_another_token_gives_other_messages(q: Session) -> None:
    q.push("orders", [1, 2])
    assert [m.data for m in q.pop("orders", token=TOKEN)] == [1]
    assert [m.data for m in q.pop("orders", token=OTHER)] == [2]
    assert [m.data for m in q.pop("orders", token=TOKEN)] == [1]


def test_a_repeated_pop_needs_not_ask_for_the_same(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    first = q.pop("orders", batch=2, token=TOKEN)
    again = q.pop("orders", batch=1, token=TOKEN, lease_seconds=5, consumer="other")
    assert seen(again) == seen(first)


def test_a_repeat_after_some_were_settled_gives_all_of_them(q: Session) -> None:
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=2, token=TOKEN)
    batch[0].ack()
    assert [m.data for m in q.pop("orders", batch=2, token=TOKEN)] == [1, 2]


def test_a_pop_that_found_nothing_may_be_repeated_with_its_token(q: Session) -> None:
    assert list(q.pop("orders", token=TOKEN)) == []
    q.push("orders", 1)
    batch = q.pop("orders", token=TOKEN)
    assert [m.data for m in batch] == [1]
    assert batch.token == TOKEN


def test_a_token_in_its_other_form_is_the_same_token(q: Session) -> None:
    q.push("orders", [1, 2])
    first = q.pop("orders", token=ids.token_uuid(ids.parse_token(TOKEN)))
    assert first.token == TOKEN
    assert seen(q.pop("orders", token=TOKEN)) == seen(first)


def test_a_repeat_works_while_the_group_is_paused_locked_or_full(q: Session) -> None:
    q.group("orders", "g", ordering="exclusive", max_ack_pending=1)
    q.push("orders", [1, 2])
    first = q.pop("orders", group="g", token=TOKEN)
    q.pause("orders")
    assert seen(q.pop("orders", group="g", token=TOKEN)) == seen(first)


@pytest.mark.parametrize(("queue", "group"), [("orders", "b"), ("bills", "a"), ("nowhere", "a")])
def test_the_token_of_another_lease_is_refused_and_nothing_is_made(
    q: Session, queue: str, group: str
) -> None:
    for name in ("orders", "bills"):
        q.push(name, 1)
        q.group(name, "b")
    q.pop("orders", group="a", token=TOKEN)
    before = q.queues()
    with pytest.raises(InvalidArgument, match="another queue or group"):
        q.pop(queue, group=group, token=TOKEN)
    assert q.queues() == before


def test_a_token_is_never_given_to_a_second_lease(q: Session, clock: VirtualClock) -> None:
    q.push("orders", [1, 2])
    first = q.pop("orders", token=TOKEN)
    clock.advance(300)
    again = q.pop("orders", token=TOKEN)
    assert [m.id for m in again] == [m.id for m in first]
    assert q.ack(again).settled == 0
    assert [m.deliveries for m in q.pop("orders", batch=9)] == [2, 1]


def test_a_lease_read_again_tells_how_many_messages_of_its_group_are_to_come(q: Session) -> None:
    ids = list(q.push("orders", list(range(5))))
    (message,) = q.pop("orders", group="g")
    q.delete_message("orders", ids[2])
    q.pop("orders", group="other")[0].requeue()
    (again,) = q.read(message.token)
    assert again.metadata.num_pending == 3
