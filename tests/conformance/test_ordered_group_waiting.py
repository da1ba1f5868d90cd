"""A message that waits holds back an ordered group as long as it waits, and no longer."""

from collections.abc import Callable
from typing import Any

import pytest

from ackflow import Message, Session, VirtualClock


def data(q: Session, batch: int = 9) -> list[Any]:
    return [message.data for message in q.pop("orders", group="g", batch=batch)]


def held(q: Session, clock: VirtualClock) -> Message:
    """The first of three messages, which waits and holds back the others; the first is older."""
    q.group("orders", "g", ordering="ordered", policy="all")
    q.push("orders", 0)
    clock.advance(50)
    q.push("orders", [1, 2])
    (message,) = q.pop("orders", group="g")
    message.nack("not now", delay=1_000)
    assert data(q) == []
    return message


def by_age(option: str) -> Callable[[Session, VirtualClock, Message], object]:
    def remove(q: Session, clock: VirtualClock, _: Message) -> None:
        q.configure("orders", **{option: 100})
        clock.advance(60)
        q.upkeep()

    return remove


WAYS: dict[str, Callable[[Session, VirtualClock, Message], object]] = {
    "it comes again": lambda q, clock, _: (clock.advance(1_000), q.pop("orders", group="g")[0].ack()),
    "it is deleted": lambda q, _, message: q.delete_message("orders", message.id),
    "it is too old to be kept": by_age("retention_seconds"),
    "it is too old to be read": by_age("ttl_seconds"),
    "the group is sought past it": lambda q, _, __: q.seek("orders", "g", sequence=1),
    "the group is not ordered any more": lambda q, _, __: q.group(
        "orders", "g", ordering="shared"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
def test_what_was_held_back_is_handed_out_when(
    q: Session, clock: VirtualClock, way: Callable[[Session, VirtualClock, Message], object]
) -> None:
    way(q, clock, held(q, clock))
    assert data(q) == [1, 2]


def test_a_purge_while_a_partition_is_leased_leaves_an_empty_queue(q: Session) -> None:
    q.group("orders", "g", ordering="ordered")
    q.push("orders", [1, 2, 3])
    q.pop("orders", group="g")
    q.purge("orders")
    assert data(q) == []
    q.push("orders", 4)
    assert data(q) == [4]


def test_a_purge_of_one_partition_leaves_the_others_to_be_served(q: Session) -> None:
    q.group("orders", "g", ordering="ordered")
    q.push("orders", [1, 2], partition="a")
    q.push("orders", [3, 4], partition="b")
    q.pop("orders", group="g", partition="a")
    q.purge("orders", partition="a")
    assert data(q) == [3, 4]
    assert data(q) == []
