"""Many leases that are settled in one call are settled in several transactions."""

from ackflow import Session
from ackflow.session import messages


def test_leases_beyond_a_slice_are_settled_in_the_order_given(q: Session, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(messages, "LEASES_AT_ONCE", 3)
    q.push("orders", list(range(10)))
    held = [q.pop("orders")[0] for _ in range(10)]
    held[4].ack()
    settled = q.ack(held)
    assert (settled.settled, settled.noop) == (9, 1)
    assert q.queue_stats("orders").groups[0].counts.done == 10


def test_a_purge_makes_room_in_the_window_of_a_group(q: Session) -> None:
    q.group("orders", "g", max_ack_pending=1)
    q.push("orders", [1, 2])
    assert len(q.pop("orders", group="g", batch=2)) == 1
    q.purge("orders")
    q.push("orders", [3])
    assert [message.data for message in q.pop("orders", group="g")] == [3]
