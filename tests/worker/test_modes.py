"""The order in which a consumer serves its queues."""

import pytest

from ackflow import VirtualClock
from ackflow.errors import InvalidArgument
from ackflow.testing import Harness
from ackflow.worker import ACK, Worker
from ackflow.worker.consumer.modes import MODES, Turns


def order(mode: str, counts: list[int], weights: list[int] | None = None) -> str:
    """The queues in the order of their turns, until a whole cycle was idle; `.` is an empty one."""
    turns = Turns(mode, weights or [1] * len(counts))
    left, said = list(counts), ""
    while not turns.idle:
        queue = turns.next()
        found = left[queue] > 0
        left[queue] -= found
        said += f"{queue + 1}" if found else "."
        turns.took(found)
    return said


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("round-robin", "12312.1....."),
        ("sequential-exhaustive", "111.22.3...."),
        ("strict-priority-interleaving", "111.2.3.2......"),
        ("hierarchical", "111.2.2..3......"),
    ],
)
def test_each_mode_serves_three_queues_in_its_order(mode: str, expected: str) -> None:
    assert order(mode, [3, 2, 1]) == expected


def test_a_weighted_queue_has_as_many_turns_as_its_weight_until_it_is_empty() -> None:
    assert order("weighted", [5, 2, 1], [3, 1, 1]) == "1112311.2...."


def test_a_message_that_arrives_at_the_first_queue_comes_before_the_third() -> None:
    turns = Turns("strict-priority-interleaving", [1, 1, 1])
    for found in (False, True):  # the first is empty, the second has one
        turns.took(found)
    assert turns.next() == 0  # looked at again before the third
    turns.took(False)
    assert turns.next() == 2


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_serves_everything(mode: str) -> None:
    assert sorted(order(mode, [4, 0, 7, 1]).replace(".", "")) == sorted("111133333334")


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="mode must be one of round-robin"):
        Turns("random", [1])


@pytest.fixture
def shop(clock: VirtualClock) -> Worker:
    worker = Worker(
        ":memory:", queue_sets={"urgent": {"orders": 3, "mail": 1}, "slow": ["reports"]}
    )
    for queue in ("orders", "mail", "reports"):
        worker.processor(queue)(lambda message, session: ACK)
    return worker


def test_messages_are_processed_in_the_order_of_the_mode(shop: Worker, clock: VirtualClock) -> None:
    with Harness(shop, clock) as h:
        for queue in ("orders", "mail", "reports"):
            shop.push(queue, [1, 2])
        handled = h.drain(queues={"mail": 2, "orders": 1}, mode="weighted")
        assert [one.queue for one in handled] == ["mail", "mail", "orders", "orders"]


def test_a_queue_set_names_queues_and_weights(shop: Worker) -> None:
    chosen = shop.select(None, "urgent")
    assert [(b.queue, b.weight) for b in chosen] == [("orders", 3), ("mail", 1)]
    assert [b.queue for b in shop.select("mail=2,reports")] == ["mail", "reports"]


@pytest.mark.parametrize(
    ("queues", "queue_set", "said"),
    [("nix", None, "no queue 'nix'; it has: orders, mail, reports"),
     (None, "nix", "no queue set 'nix'; there are: slow, urgent"),
     ("mail", "urgent", "either queues or a queue set"),
     ("mail,mail", None, "given twice"), ("mail=0", None, "at least 1")],
)  # fmt: skip
def test_a_wrong_choice_of_queues_is_refused(
    shop: Worker, queues: str | None, queue_set: str | None, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        shop.select(queues, queue_set)
