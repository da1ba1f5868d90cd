"""The examples for those who come from JetStream do what its documentation says of each."""

import importlib.util
import inspect
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

import ackflow
from ackflow import Batch, Message, Session, VirtualClock
from ackflow.jetstream import ConsumerConfig, consumer

from ..running import Running
from .waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = ("jetstream_consumers", "jetstream_acks", "jetstream_patterns")

# Everything JetStream's documentation of acknowledgement shows in code, in its order.
HEADINGS = [
    "AckExplicit (Default)",
    "AckAll",
    "AckNone",
    "Ack - Success",
    "DoubleAck - Confirmed Success",
    "Nak - Retry Now",
    "InProgress - Extend Deadline",
    "Term - Terminate",
    "Ack Wait",
    "MaxDeliver",
    "BackOff",
    "MaxAckPending",
    "Simple Processing",
    "With Timeout Handling",
    "Poison Message Handling",
    "Batch Ack (AckAll policy)",
    "Message Metadata",
    "Dead Letter Queues",
]

Example = Callable[..., Any]
Proof = Callable[[Session, VirtualClock, Example], None]
PROOFS: dict[str, Proof] = {}


def load(name: str) -> dict[str, Example]:
    """The examples of a file by their headings."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [part for part in vars(module).values() if isinstance(part, FunctionType)]
    return {inspect.getdoc(f) or "": f for f in found if f.__module__ == name and f.__doc__}


LOADED = {name: load(name) for name in FILES}
SHOWN = {heading: f for found in LOADED.values() for heading, f in found.items()}


def proves(heading: str) -> Callable[[Proof], Proof]:
    def keep(proof: Proof) -> Proof:
        PROOFS[heading] = proof
        return proof

    return keep


@pytest.fixture(params=["file", "server"])
def q(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Session]:
    """A session on a file, and one through a server on a file."""
    with ackflow.connect(tmp_path / "orders.db", clock=clock, upkeep=False) as session:
        if request.param == "file":
            yield session
            return
        running = Running(session)
        with ackflow.connect(running.url, clock=clock) as remote:
            yield remote
        running.stop()


def test_every_example_of_the_documentation_has_its_twin_and_its_proof() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) == 18
    assert sum(map(len, LOADED.values())) == len(SHOWN)
    assert sorted(SHOWN) == sorted(HEADINGS)
    assert sorted(PROOFS) == sorted(HEADINGS)
    assert {path.stem for path in EXAMPLES.glob("jetstream_*.py")} == set(FILES)


@pytest.mark.parametrize("heading", HEADINGS)
def test_an_example_does_what_the_documentation_says(
    q: Session, clock: VirtualClock, heading: str
) -> None:
    PROOFS[heading](q, clock, SHOWN[heading])


@pytest.mark.parametrize("name", FILES)
def test_every_file_runs_on_a_throw_away_database(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(tmp_path))
    assert "done" in capsys.readouterr().out


def counts(q: Session, group: str = "workers") -> Any:
    return q.group_stats("orders", group).counts


def fetched(q: Session, n: int) -> Batch[Message]:
    """So many messages, pushed and fetched."""
    q.push("orders", list(range(n)))
    return consumer(q, "orders", "workers").fetch(n, wait=0)


def broken(message: Message) -> None:
    """Fails on every odd message."""
    if message.data % 2:
        raise ValueError(f"{message.data} is odd")


# the policies


@proves("AckExplicit (Default)")
def each_message_must_be_acknowledged(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2, 3])
    made = example(q)
    made.fetch(3, wait=0)[1].ack()
    clock.advance(31)
    assert [message.data for message in made.fetch(3, wait=0)] == [1, 3]
    assert q.group_stats("orders", made.name).settings.policy == ConsumerConfig().ack_policy


@proves("AckAll")
def an_ack_is_for_all_before_it(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2, 3, 4])
    made = example(q)
    made.fetch(4, wait=0)[2].ack()
    clock.advance(31)
    assert [message.data for message in made.fetch(4, wait=0)] == [4]


@proves("AckNone")
def no_ack_is_required(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [1, 2])
    made = example(q)
    made.fetch(2, wait=0)
    clock.advance(31)
    assert not made.fetch(2, wait=0)
    assert counts(q, made.name).done == 2


# the kinds of acknowledgement


@proves("Ack - Success")
def it_is_removed_from_what_is_pending(q: Session, clock: VirtualClock, example: Example) -> None:
    (message,) = fetched(q, 1)
    assert counts(q).leased == 1
    example(message)
    assert (counts(q).leased, counts(q).done) == (0, 1)


@proves("DoubleAck - Confirmed Success")
def it_says_whether_it_was_confirmed(q: Session, clock: VirtualClock, example: Example) -> None:
    first, late = fetched(q, 2)
    assert example(first) is True
    assert counts(q).done == 1
    clock.advance(31)
    assert example(late) is False
    assert counts(q).ready == 1


@proves("Nak - Retry Now")
def it_comes_at_once_or_after_the_delay(q: Session, clock: VirtualClock, example: Example) -> None:
    example(*fetched(q, 2))
    workers = consumer(q, "orders", "workers", ConsumerConfig(backoff=[7]))
    (now,) = workers.fetch(2, wait=0)
    assert now.data == 0
    clock.advance(5)
    (later,) = workers.fetch(2, wait=0)
    assert later.data == 1
    now.nack()  # this time there is a back-off to respect
    clock.advance(6.9)
    assert not workers.fetch(1, wait=0)
    clock.advance(0.1)
    assert workers.fetch(1, wait=0)


@proves("InProgress - Extend Deadline")
def the_timer_begins_anew(q: Session, clock: VirtualClock, example: Example) -> None:
    (message,) = fetched(q, 1)
    clock.advance(29)
    example(message)
    clock.advance(29)
    assert counts(q).leased == 1
    message.ack()


@proves("Term - Terminate")
def it_is_never_delivered_again(q: Session, clock: VirtualClock, example: Example) -> None:
    example(*fetched(q, 2))
    clock.advance(3600)
    assert not consumer(q, "orders", "workers").fetch(2, wait=0)
    reasons = {letter.data: letter.reason for letter in q.dead_letters("orders").items}
    assert reasons == {0: None, 1: "invalid message format"}


# waiting, limits


@proves("Ack Wait")
def it_waits_thirty_seconds(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", 1)
    made = example(q)
    made.fetch(1, wait=0)
    clock.advance(29.9)
    assert not made.fetch(1, wait=0)
    clock.advance(0.1)
    assert made.fetch(1, wait=0)
    assert ConsumerConfig().ack_wait == 30


@proves("MaxDeliver")
def after_five_deliveries_it_is_a_dead_letter(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    q.push("orders", 1)
    made = example(q)
    for _ in range(5):
        made.fetch(1, wait=0)[0].nack("still broken")
    assert not made.fetch(1, wait=0)
    (letter,) = q.dead_letters("orders").items
    assert (letter.deliveries, letter.reason) == (5, "still broken")
    assert ConsumerConfig().max_deliver == -1


@proves("BackOff")
def the_last_step_repeats(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", 1)
    made = example(q)
    for pause in (1, 5, 30, 120, 120, 120):
        made.fetch(1, wait=0)[0].nack()
        clock.advance(pause - 0.001)
        assert not made.fetch(1, wait=0)
        clock.advance(0.001)
    assert made.fetch(1, wait=0)


@proves("MaxAckPending")
def a_thousand_may_be_out(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", list(range(1500)))
    made = example(q)
    first = made.fetch(1200, wait=0)
    assert len(first) == 1000
    assert not made.fetch(1, wait=0)
    q.ack(first[:300])
    assert len(made.fetch(500, wait=0)) == 300
    assert ConsumerConfig().max_ack_pending == 1000


# the patterns


@proves("Simple Processing")
def what_fails_is_delivered_again(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", [0, 1, 2])
    workers = consumer(q, "orders", "workers")
    example(workers, broken)
    assert (counts(q).done, counts(q).ready) == (2, 1)
    (again,) = workers.fetch(5, wait=0)
    assert (again.data, again.failures) == (1, 1)


@proves("With Timeout Handling")
def work_may_take_longer_than_the_ack_wait(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    q.push("orders", [0, 1])
    workers = consumer(q, "orders", "workers")

    def end() -> Any:
        return q.leases("orders")[0].expires_at

    def work(message: Message) -> None:
        for _ in range(3):
            before = end()
            clock.advance(20)
            until(lambda before=before: end() > before)  # type: ignore[misc]
        broken(message)

    example(workers, work, every=0.01)
    assert (counts(q).done, counts(q).ready) == (1, 1)
    assert workers.fetch(1, wait=0)[0].deliveries == 2


@proves("Poison Message Handling")
def what_was_delivered_too_often_is_terminated(
    q: Session, clock: VirtualClock, example: Example
) -> None:
    q.push("orders", [0, 1])
    workers, tried = consumer(q, "orders", "workers"), list[int]()

    def work(message: Message) -> None:
        tried.append(message.data)
        broken(message)

    for _ in range(4):
        example(workers, work)
    assert tried == [0, 1, 1, 1]
    assert not workers.fetch(5, wait=0)
    assert [letter.data for letter in q.dead_letters("orders").items] == [1]


@proves("Batch Ack (AckAll policy)")
def one_ack_is_for_the_batch(q: Session, clock: VirtualClock, example: Example) -> None:
    q.push("orders", list(range(100)))
    workers = consumer(q, "orders", "workers", ConsumerConfig(ack_policy="all"))
    seen: list[Any] = []
    example(workers, seen.append)
    assert (len(seen), counts(q).done) == (100, 100)
    nobody = SimpleNamespace(fetch=lambda n, wait: ())
    example(nobody, seen.append)  # nothing was fetched, and nothing is acked


@proves("Message Metadata")
def it_tells_of_the_delivery(q: Session, clock: VirtualClock, example: Example) -> None:
    first, second = fetched(q, 2)
    assert list(example(first).values()) == [1, 1, 1, 1, first.created_at]
    second.nack()
    clock.advance(1)
    (again,) = consumer(q, "orders", "workers").fetch(2, wait=0)
    assert list(example(again).values()) == [2, 3, 2, 0, first.created_at]


@proves("Dead Letter Queues")
def it_moves_to_the_other_queue(q: Session, clock: VirtualClock, example: Example) -> None:
    (message,) = fetched(q, 1)
    example(q, message, 2)
    message.nack()
    workers = consumer(q, "orders", "workers")
    (again,) = workers.fetch(1, wait=0)
    example(q, again, 2)
    clock.advance(31)
    assert not workers.fetch(1, wait=0)
    assert [found.data for found in q.pop("dlq.orders", batch=5)] == [0]
