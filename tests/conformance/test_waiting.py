"""A pop that waits: it ends when something comes, when its time is over, and not before.

The virtual clock tells when a pop has begun to wait, so nothing here sleeps; the last tests use the
real clock, because how soon a waiting pop wakes is the point.
"""

import contextlib
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import ackflow
from ackflow import Batch, Message, Session, VirtualClock
from ackflow.broker.core.handout import Handout
from ackflow.broker.core.pop import WidePop
from ackflow.errors import SessionClosed

pytestmark = pytest.mark.every_store

LONG = 10.0


class WatchedClock(VirtualClock):
    """A virtual clock that counts how often a wait began."""

    def __init__(self) -> None:
        super().__init__()
        self._waits = threading.Semaphore(0)

    def seconds_left(self, steady: int) -> float:
        """Asked by a pop that looked, found nothing, and waits next."""
        self._waits.release()
        return super().seconds_left(steady)

    def somebody_waits(self, times: int = 1) -> None:
        """Return when `times` more waits have begun."""
        for _ in range(times):
            assert self._waits.acquire(timeout=LONG), "nobody waits"

    @property
    def nobody_began_to_wait(self) -> bool:
        return not self._waits.acquire(blocking=False)


class Waiter:
    """A pop in a thread of its own."""

    def __init__(
        self,
        q: Session,
        queue: str = "q",
        finished: "SimpleQueue[Waiter] | None" = None,
        **options: Any,
    ) -> None:
        self._finished = finished
        self._options = {"group": "g", "wait": 60.0, "batch": 100, **options}
        self._q = q
        self._queue = queue
        self._batch: Batch[Message] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._batch = self._q.pop(self._queue, **self._options)
        except BaseException as error:
            self._error = error
        if self._finished is not None:
            self._finished.put(self)

    @property
    def batch(self) -> Batch[Message]:
        self._thread.join(LONG)
        assert not self._thread.is_alive(), "the pop still waits"
        if self._error is not None:
            raise self._error
        assert self._batch is not None
        return self._batch

    @property
    def data(self) -> list[Any]:
        return [m.data for m in self.batch]

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


def waiting(q: Session, clock: WatchedClock, queue: str = "q", **options: Any) -> Waiter:
    """A pop that has looked, found nothing and waits."""
    waiter = Waiter(q, queue, **options)
    clock.somebody_waits()
    return waiter


def test_a_pop_that_finds_something_does_not_wait(q: Session, clock: WatchedClock) -> None:
    q.push("q", 1)
    assert len(q.pop("q", wait=60)) == 1
    assert clock.nobody_began_to_wait


def test_a_pop_without_wait_does_not_wait(q: Session, clock: WatchedClock) -> None:
    assert len(q.pop("q")) == 0
    assert clock.nobody_began_to_wait


def test_a_push_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    waiter = waiting(q, clock)
    q.push("q", "a")
    assert waiter.data == ["a"]


def test_a_waiting_pop_ends_empty_when_its_time_is_over_and_not_before(
    q: Session, clock: WatchedClock
) -> None:
    waiter = waiting(q, clock, wait=20)
    clock.advance(20 - 0.000001)
    clock.somebody_waits()
    assert waiter.waits
    clock.advance(0.000001)
    assert waiter.data == []


def test_a_pop_brings_what_is_there_without_waiting_for_a_full_batch(
    q: Session, clock: WatchedClock
) -> None:
    waiter = waiting(q, clock, batch=10)
    q.push("q", [1, 2])
    assert waiter.data == [1, 2]


def test_a_push_to_another_queue_brings_nothing(q: Session, clock: WatchedClock) -> None:
    waiter = waiting(q, clock, wait=20)
    q.push("other", 1)
    clock.advance(20)
    assert waiter.data == []


def test_a_pop_of_one_partition_waits_for_that_partition(q: Session, clock: WatchedClock) -> None:
    q.push("q", "seen", partition="b")
    q.ack(q.pop("q", group="g"))
    waiter = waiting(q, clock, partition="b")
    q.push("q", 1, partition="a")
    clock.somebody_waits()
    assert waiter.waits
    q.push("q", 2, partition="b")
    assert waiter.data == [2]


def test_a_pop_of_a_partition_that_is_made_later_is_woken(q: Session, clock: WatchedClock) -> None:
    waiter = waiting(q, clock, partition="new")
    q.push("q", 1, partition="new")
    assert waiter.data == [1]


def test_every_group_that_waits_is_woken_by_one_push(q: Session, clock: WatchedClock) -> None:
    waiters = [waiting(q, clock, group=f"g{i}") for i in range(3)]
    q.push("q", "a")
    assert [w.data for w in waiters] == [["a"]] * 3


def test_one_push_of_three_wakes_three_waiting_pops(q: Session, clock: WatchedClock) -> None:
    waiters = [waiting(q, clock, batch=1) for _ in range(3)]
    q.push("q", [1, 2, 3])
    assert sorted(value for w in waiters for value in w.data) == [1, 2, 3]


def test_three_pushes_wake_three_waiting_pops(q: Session, clock: WatchedClock) -> None:
    finished: SimpleQueue[Waiter] = SimpleQueue()
    for _ in range(3):
        waiting(q, clock, finished=finished)
    for value in range(3):
        q.push("q", value)
        assert finished.get(timeout=LONG).data == [value]


# what else wakes


def test_an_ended_nack_delay_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    q.push("q", "a")
    q.pop("q", group="g")[0].nack(delay=5)
    waiter = waiting(q, clock)
    clock.advance(4.9)
    clock.somebody_waits()
    assert waiter.waits
    clock.advance(0.1)
    assert waiter.data == ["a"]


def test_a_nack_delay_given_while_the_pop_waits_wakes_it_when_it_ends(
    q: Session, clock: WatchedClock
) -> None:
    q.push("q", "a")
    (message,) = q.pop("q", group="g")
    waiter = waiting(q, clock)
    message.nack(delay=5)
    clock.somebody_waits()
    clock.advance(5)
    assert waiter.data == ["a"]


def test_the_end_of_another_lease_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    q.push("q", "a")
    q.pop("q", group="g", lease_seconds=30)
    waiter = waiting(q, clock)
    clock.advance(30)
    assert waiter.data == ["a"]


def test_the_back_off_after_an_expiry_wakes_a_waiting_pop_at_its_end(
    q: Session, clock: WatchedClock
) -> None:
    q.group("q", "g", lease_seconds=10, backoff=[20])
    q.push("q", "a")
    q.pop("q", group="g")
    waiter = waiting(q, clock)
    clock.advance(10)
    clock.somebody_waits()
    assert waiter.waits
    clock.advance(20)
    assert waiter.data == ["a"]


def test_a_delayed_push_wakes_a_waiting_pop_when_it_is_due(q: Session, clock: WatchedClock) -> None:
    waiter = waiting(q, clock)
    q.push("q", "a", delay=7)
    clock.somebody_waits()
    clock.advance(7)
    assert waiter.data == ["a"]


@pytest.mark.parametrize("verb", ["nack", "release", "requeue"])
def test_what_another_gives_back_wakes_a_waiting_pop(
    q: Session, clock: WatchedClock, verb: str
) -> None:
    q.push("q", "a")
    (message,) = q.pop("q", group="g")
    waiter = waiting(q, clock)
    getattr(message, verb)()
    assert waiter.data == ["a"]


@pytest.mark.parametrize(
    "options", [{"ordering": "ordered"}, {"ordering": "exclusive"}, {"max_ack_pending": 1}]
)
@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_settle_that_makes_room_wakes_a_waiting_pop(
    q: Session, clock: WatchedClock, options: dict[str, Any], verb: str
) -> None:
    q.group("q", "g", **options)
    q.push("q", ["a", "b"])
    (message,) = q.pop("q", group="g")
    waiter = waiting(q, clock)
    getattr(message, verb)()
    assert waiter.data == ["b"]


@pytest.mark.parametrize("paused", [None, "g"])
def test_a_resume_wakes_a_waiting_pop(q: Session, clock: WatchedClock, paused: str | None) -> None:
    q.push("q", "a")
    q.group("q", "g")
    q.pause("q", paused)
    waiter = waiting(q, clock)
    q.resume("q", paused)
    assert waiter.data == ["a"]


def test_a_seek_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    q.push("q", "a")
    q.ack(q.pop("q", group="g"))
    waiter = waiting(q, clock)
    q.seek("q", "g", to="start")
    assert waiter.data == ["a"]


def test_a_redrive_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    q.push("q", "a")
    q.pop("q", group="g")[0].reject()
    waiter = waiting(q, clock)
    q.redrive("q")
    assert waiter.data == ["a"]


def test_a_transaction_and_a_published_stage_wake_a_waiting_pop(
    q: Session, clock: WatchedClock
) -> None:
    waiter = waiting(q, clock)
    with q.transaction() as t:
        t.push("q", "by transaction")
    assert waiter.data == ["by transaction"]
    stage = q.stage("producer", 0, "q", "by stage")
    waiter = waiting(q, clock)
    q.publish("producer", 0, [stage])
    assert waiter.data == ["by stage"]


def test_a_wider_window_wakes_a_waiting_pop(q: Session, clock: WatchedClock) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", ["a", "b"])
    q.pop("q", group="g")
    waiter = waiting(q, clock)
    q.group("q", "g", max_ack_pending=2)
    assert waiter.data == ["b"]


def test_deleting_what_filled_the_window_wakes_a_waiting_pop(
    q: Session, clock: WatchedClock
) -> None:
    q.group("q", "g", max_ack_pending=1)
    q.push("q", ["a", "b"])
    (message,) = q.pop("q", group="g")
    waiter = waiting(q, clock)
    q.delete_message("q", message.id)
    assert waiter.data == ["b"]


def test_a_pop_that_waits_in_vain_says_what_held_it_back(q: Session, clock: WatchedClock) -> None:
    q.group("q", "g", ordering="exclusive")
    q.push("q", "a")
    held = q.pop("q", group="g")
    waiter = waiting(q, clock, wait=20)
    clock.advance(20)
    assert (waiter.batch.why, waiter.batch.retry_at) == ("locked", held.expires_at)


def test_an_extended_lease_keeps_a_waiting_pop_waiting(q: Session, clock: WatchedClock) -> None:
    q.push("q", "a")
    (message,) = q.pop("q", group="g", lease_seconds=10)
    waiter = waiting(q, clock)
    message.extend(30)
    clock.advance(10)
    clock.somebody_waits()
    assert waiter.waits
    clock.advance(20)
    assert waiter.data == ["a"]


def test_closing_the_session_ends_every_waiting_pop(q: Session, clock: WatchedClock) -> None:
    waiters = [waiting(q, clock) for _ in range(3)]
    q.close()
    for waiter in waiters:
        with pytest.raises(SessionClosed):
            _ = waiter.batch


def test_a_pop_that_gives_up_tells_the_next_what_will_be_due(
    q: Session, clock: WatchedClock
) -> None:
    q.push("q", "a")
    (message,) = q.pop("q", group="g")
    first = waiting(q, clock, wait=3)
    second = waiting(q, clock)
    message.nack(delay=5)
    clock.somebody_waits()
    clock.advance(3)
    assert first.data == []
    clock.somebody_waits()
    clock.advance(2)
    assert second.data == ["a"]


def test_a_pop_that_may_not_have_what_came_does_not_stand_for_one_that_may() -> None:
    clock = WatchedClock()
    given: list[Handout] = []
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:

        def pop(queue: str, wait: float) -> None:
            request = WidePop("", "g", "c", namespace="ns", among=lambda name: name == queue)
            with contextlib.suppress(SessionClosed):
                given.append(q._broker.pop(request, wait))

        for name in ("a", "b"):
            q.configure(name, namespace="ns")
        threads = [threading.Thread(target=pop, args=(name, 60), daemon=True) for name in "ab"]
        for thread in threads:
            thread.start()
            clock.somebody_waits()
        q.push("b", "here")
        threads[1].join(LONG)
        assert [answer.queue for answer in given] == ["b"]
    threads[0].join(LONG)


# the real clock


SOON = LONG / 2  # of what a pop waits that is not woken


def test_a_waiting_pop_wakes_soon_after_a_push_from_another_thread() -> None:
    with ackflow.connect(":memory:") as q:
        q.group("q", "g")
        waiter = Waiter(q, wait=LONG)
        time.sleep(0.1)
        assert waiter.waits
        began = time.monotonic()
        q.push("q", "a")
        assert waiter.data == ["a"]
        assert time.monotonic() - began < SOON


def test_a_waiting_pop_wakes_soon_after_a_nack_delay_is_over() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        q.push("q", "a")
        began = time.monotonic()
        q.pop("q", group="g")[0].nack(delay=0.2)
        assert Waiter(q, wait=LONG).data == ["a"]
        assert 0.2 <= time.monotonic() - began < 0.2 + SOON


def test_a_waiting_pop_ends_soon_after_its_time() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        began = time.monotonic()
        assert len(q.pop("q", wait=0.2)) == 0
        assert 0.2 <= time.monotonic() - began < 0.2 + SOON


def test_a_waiting_pop_wakes_soon_after_a_push_through_another_session(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with ackflow.connect(path) as producer, ackflow.connect(path) as consumer:
        consumer.group("q", "g")
        waiter = Waiter(consumer, wait=LONG)
        time.sleep(0.1)
        assert waiter.waits
        began = time.monotonic()
        producer.push("q", "a")
        assert waiter.data == ["a"]
        assert time.monotonic() - began < SOON


def test_consumers_that_wait_in_many_threads_get_every_message_once_and_soon() -> None:
    given: list[int] = []
    waited: list[float] = []
    with ackflow.connect(":memory:", upkeep=False) as q:

        def consume() -> None:
            while True:
                began = time.monotonic()
                batch = q.pop("q", group="g", batch=2, wait=LONG)
                waited.append(time.monotonic() - began)
                q.ack(batch)
                values = [m.data for m in batch]
                given.extend(value for value in values if value is not None)
                if None in values or not values:
                    q.push("q", None)
                    return

        threads = [threading.Thread(target=consume, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for value in range(300):
            q.push("q", value)
        q.push("q", None)
        for thread in threads:
            thread.join(2 * LONG)
            assert not thread.is_alive()
    assert sorted(given) == list(range(300))
    assert max(waited) < LONG / 2
