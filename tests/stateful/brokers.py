"""The state machine with three brokers on one PostgreSQL schema, each of which caches what it has read.

They take turns at random. After each step, what a broker has cached must be right wherever the
versions that it compares are those of the rows.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ackflow import Batch, Message, Session, errors, ids
from ackflow.broker.core.admin.global_pause import switch
from ackflow.broker.core.pop import WidePop, pop
from ackflow.broker.core.routing.publish import publish
from ackflow.broker.requests import PopRequest, Publication
from ackflow.broker.requests import Verdict as Asked
from ackflow.dialects.jetstream.consumer import Consumer
from ackflow.dialects.pushpop.lock import settle_lock
from ackflow.dialects.queen.verbs.settle_by_name import NamedMessage, settle_named
from ackflow.dialects.rabbitmq.verbs import bind, declare_exchange, unbind
from ackflow.session import encoding
from ackflow.session.messages import Receipt
from ackflow.store import cache
from ackflow.store.job import Job
from ackflow.store.postgres.connection import PipelinedConnection
from ackflow.store.postgres.store import PostgresStore
from ackflow.store.protocol import EVERYTHING, Reach
from ackflow.store.records import Binding, Exchange
from ackflow.store.tx import Tx

from .cached import check_cache
from .cases import GROUPS, KEYS, LANES, QUEUES, SOME
from .model import GroupKey, LaneKey
from .shared import PostgresMachine

NAMESPACE = "all"
LOST = "the connection is lost"


class Failed(Exception):
    """What a verb raises that fails after it has written."""


class BrokersMachine(PostgresMachine):
    """Each verb may lock its queues or, as an undeclared one does, the whole schema."""

    sessions_wanted = 3

    def __init__(self) -> None:
        super().__init__()
        self.wide_brokers: set[int] = set()
        self.named = False
        self.compared = 0
        for number, session in enumerate(self.sessions):
            runner = self.writer(session)._runner
            runner._reach_of = partial(self.reach_of, number, runner._reach_of)

    def reach_of(self, number: int, found: Callable[..., Reach | None], *call: Any) -> Reach | None:
        return EVERYTHING if number in self.wide_brokers else found(*call)

    def writer(self, session: Session) -> Any:
        return session.broker.writer  # type: ignore[attr-defined]

    def store_of(self, pick: int) -> PostgresStore:
        return self.q(pick).broker.store  # type: ignore[return-value]

    # what may be cached

    @rule(pick=SOME, wide=st.booleans())
    def lock_queues_or_all(self, pick: int, wide: bool) -> None:
        number = pick % len(self.sessions)
        self.wide_brokers = self.wide_brokers | {number} if wide else self.wide_brokers - {number}

    @rule(pick=SOME, most=st.sampled_from([None, 0, 8]))
    def evict(self, pick: int, most: int | None) -> None:
        """Evict the records of lanes, or clear all in place of one queue with more than `most`."""
        if most is None:
            self.store_of(pick)._cache.crowded = True
        cache.MAX_SORTED_OUT = 5_000 if most is None else most

    def teardown(self) -> None:
        cache.MAX_SORTED_OUT = 5_000
        super().teardown()

    @rule(pick=SOME, when=st.sampled_from(["before", "commit", "after"]), lane=LANES)
    def lose_the_connection(self, pick: int, when: str, lane: LaneKey) -> None:
        """Between two transactions, or before or after the server gets a commit."""
        if when == "before":
            writing = self.store_of(pick)._writer
            if writing is not None:
                writing.db.close()
        with self.cut_off(when == "after") if when != "before" else contextlib.nullcontext():
            self.push_a_run(pick, lane, 2, False)

    @contextlib.contextmanager
    def cut_off(self, after: bool) -> Iterator[None]:
        left = [1]

        def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
            def commit(channel: PipelinedConnection, *args: Any) -> Any:
                if not (channel.wrote and left):
                    return real(channel, *args)
                left.pop()
                if after:
                    real(channel, *args)
                channel.db.close()
                raise psycopg.OperationalError(LOST)

            return commit

        commit, run_held = PipelinedConnection.commit, PipelinedConnection.run_held
        with (
            mock.patch.object(PipelinedConnection, "commit", cutting(commit)),
            mock.patch.object(PipelinedConnection, "run_held", cutting(run_held)),
        ):
            yield

    @rule(pick=SOME, key=KEYS, refused=st.booleans())
    def fail_after_writing(self, pick: int, key: GroupKey, refused: bool) -> None:
        """A transaction that is rolled back leaves nothing, neither in rows nor in the cache."""
        queue, name = self.group(key)

        def failing(tx: Tx, request: PopRequest) -> None:
            if not refused:
                pop(tx, request)
                raise Failed
            with tx.savepoint():
                pop(tx, request)
                raise errors.InvalidArgument("refused in a savepoint")

        try:
            self.q(pick).broker.do(failing, False, PopRequest(queue, name, "c", 3))
        except (Failed, errors.InvalidArgument):
            return
        raise AssertionError("it did not fail")

    # other ways to pop, settle and push

    @rule(pick=SOME, batch=st.integers(1, 5))
    def pop_from_any_queue(self, pick: int, batch: int) -> None:
        session = self.q(pick)
        if not self.named:
            self.named = True
            for queue in ("orders", "jobs"):
                self.sessions[-1].configure(queue, namespace=NAMESPACE)
        request = WidePop("", "shared", "c", batch, namespace=NAMESPACE)
        handout = session.broker.pop(request)
        keys = [(queue, "shared") for queue in ("orders", "jobs")]
        if not handout.runs:
            assert not any(self.model.room(key)[0] and self.model.ready(key) for key in keys)
            return
        self.check_taken((handout.queue, "shared"), Batch.of(session, handout, Message), batch)

    @rule(pick=SOME, key=KEYS, batch=st.integers(1, 5))
    def fetch_as_jetstream(self, pick: int, key: GroupKey, batch: int) -> None:
        key = self.group(key)
        self.check_taken(key, Consumer(self.q(pick), *key).fetch(batch, wait=0), batch)

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME, key=KEYS, batch=st.integers(1, 5))
    def ack_and_pop(self, pick: int, which: int, key: GroupKey, batch: int) -> None:
        """Ack a batch of one queue and pop from the same or another one, in one transaction."""
        handed, key = self.batch(which), self.group(key)
        if not self.known(handed.token):
            return
        queue, name = key
        told, found = self.q(pick).ack_and_pop(handed.messages, queue, group=name, batch=batch)
        expected = self.model.settle(handed.token, "ack", handed.places)
        self.compare(told, expected, handed.token)
        self.check_taken(key, found, batch)

    @rule(pick=SOME, verb=st.sampled_from(["ack", "release"]))
    def settle_a_lock_as_pushpop(self, pick: int, verb: str) -> None:
        live = self.model.live(("orders", "exclusive"))
        if live:
            token, verdict = ids.parse_token(live[0]), Asked(verb)  # type: ignore[arg-type]
            call = settle_lock, True, "orders", "exclusive", token, verdict
            ended = self.q(pick).broker.do(*call)
            expected = self.model.settle_whole(live[0], verb)
            assert ended == expected.settled + expected.noop

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME, at=SOME)
    def ack_by_name_as_queen(self, pick: int, which: int, at: int) -> None:
        batch = self.batch(which)
        message, place = (
            batch.messages[at % len(batch.places)],
            batch.places[at % len(batch.places)],
        )
        if batch.token not in self.model.live(batch.key) or place not in self.model.held(
            batch.token
        ):
            return

        def by_name(tx: Tx) -> Any:
            queue = tx.queue(batch.key[0])
            home = tx.partition(queue.id, place.lane.partition) if queue else None
            assert home is not None
            named = NamedMessage(home.id, message.id, Asked("ack"), batch.key[1])
            return settle_named(tx, [named])

        (told,) = self.q(pick).broker.do(by_name, True)
        assert told.error is None
        self.model.settle(batch.token, "ack", [place])

    @rule(pick=SOME, other=SOME, last=SOME, queue=QUEUES)
    def publish_as_rabbitmq(self, pick: int, other: int, last: int, queue: str) -> None:
        """One broker binds, another one publishes, and after the third one unbinds nothing comes."""
        queue = self.focus[0] if self.focus else queue
        binding, number = Binding("x", False, queue, "key", {}), self.number()
        some = [Publication("x", ["key"], str(number).encode(), binary=False)]
        self.q(pick).broker.do(declare_exchange, True, Exchange("x", "direct"))
        self.q(pick).broker.do(bind, True, binding, "connection")
        assert self.q(other).broker.do(publish, True, some) == [1]
        self.q(last).broker.do(unbind, True, binding, "connection")
        assert self.q(other).broker.do(publish, True, some) == [0]
        lane = LaneKey(queue, "Default", 0)
        (self.lane_ids[lane],) = [id for id, key in self.rows().keys.items() if key == lane]
        self.model.push(lane, number, 0.0, None)

    @rule(pick=SOME, counts=st.tuples(*[st.integers(0, 3)] * 4), key=KEYS, batch=st.integers(1, 5))
    def run_together(
        self, pick: int, counts: tuple[int, int, int, int], key: GroupKey, batch: int
    ) -> None:
        """Verbs of both queues in one group commit: the fences of all but the first must be free."""
        key, jobs, pushed = self.group(key), [], []
        for at, count in enumerate(counts):
            lane = self.lane(LaneKey(("orders", "jobs")[at % 2], "A", 0))
            if count:
                data = [self.number() for _ in range(count)]
                request, places = encoding.request(
                    lane.queue,
                    data,
                    partition=lane.partition,
                    priority=lane.priority,
                    delay=None,
                    key=None,
                    whole=True,
                )
                jobs.append(Job(_never, (), True, request))
                pushed.append((lane, data, places))
        jobs.append(Job(pop, (PopRequest(*key, "c", batch),), False))
        session = self.q(pick)
        self.together(session, jobs)
        for job, (lane, data, places) in zip(jobs, pushed, strict=False):
            receipt = Receipt(self.store, job.answer, places, False)
            for number, id in zip(data, receipt, strict=True):
                self.pushed(self.model.push(lane, number, 0.0, None)[0], id)
        self.check_taken(key, Batch.of(session, jobs[-1].answer, Message), batch)

    def together(self, session: Session, jobs: Sequence[Job]) -> None:
        left = threading.Semaphore(0)
        for job in jobs:
            job.on_answer = lambda _: left.release()
        self.writer(session).submit(jobs)
        for _ in jobs:
            assert left.acquire(timeout=60)
        for job in jobs:
            assert job.error is None, job.error

    @rule(pick=st.lists(SOME, min_size=4, max_size=8), queue=QUEUES, room=st.integers(0, 6))
    def push_while_it_is_nearly_full(self, pick: list[int], queue: str, room: int) -> None:
        """Brokers in turn push and ack until one is refused, which must be right."""
        queue = self.focus[0] if self.focus else queue
        lane = self.lane(LaneKey(queue, "A", 0))
        late = {place for some in self.rows().late(self.model.now).values() for place in some}
        if late:
            return
        most = self.backlog(queue) + room
        self.q(pick[0]).configure(queue, max_size=max(1, most))
        for number in pick:
            count, full = number % 3 + 1, False
            data = [self.number() for _ in range(count)]
            try:
                receipt = self.q(number).push(
                    queue, data, partition=lane.partition, priority=lane.priority
                )
            except errors.QueueFull:
                full = True
            assert full == (self.backlog(queue) + count > max(1, most))
            if not full:
                for value, id in zip(data, receipt, strict=True):
                    self.pushed(self.model.push(lane, value, 0.0, None)[0], id)
            elif number % 2 and self.batches:
                self.settle_a_whole_lease_by_its_token(number // 3, number // 7, "ack")
        self.q(pick[-1]).configure(queue, max_size=None)

    def backlog(self, queue: str) -> int:
        states = [self.model.groups[key].states for key in GROUPS if key[0] == queue]
        open = {
            place for some in states for place, s in some.items() if s.kind in ("open", "leased")
        }
        return len(open)

    # what one broker changes for all

    @rule(pick=SOME, other=SOME, last=SOME, key=KEYS)
    def pause_everything(self, pick: int, other: int, last: int, key: GroupKey) -> None:
        self.q(pick).broker.do(lambda tx: switch(tx, pops=True), True)
        queue, name = self.group(key)
        assert not self.q(other).pop(queue, group=name, batch=5)
        self.q(last).broker.do(lambda tx: switch(tx, pops=False), True)

    @rule(pick=SOME, other=SOME, number=st.integers(0, 3), lane=LANES)
    def put_a_value(self, pick: int, other: int, number: int, lane: LaneKey) -> None:
        for session, value in ((self.q(pick), number), (self.q(other), number + 1)):
            with session.transaction() as together:
                together.put("shared value", value)
            for one in self.sessions:
                found = one.value("shared value")
                assert found is not None
                assert found.data == value

    @rule(pick=SOME, other=SOME, queue=QUEUES, rarely=st.integers(0, 3))
    def delete_a_queue_and_create_it_again(
        self, pick: int, other: int, queue: str, rarely: int
    ) -> None:
        if rarely:
            return
        assert self.q(pick).delete_queue(queue)
        self.model.delete_queue(queue)
        self.lane_ids = {key: id for key, id in self.lane_ids.items() if key.queue != queue}
        self.batches = [batch for batch in self.batches if batch.key[0] != queue]
        self.keyed = [keyed for keyed in self.keyed if keyed[1].queue != queue]
        keep: dict[str, Any] = (
            {"keep_seconds": 0, "history_seconds": 600} if queue == "jobs" else {}
        )
        self.q(other).configure(queue, namespace=NAMESPACE, **keep)
        for key in [key for key in GROUPS if key[0] == queue]:
            self.create(other, key)

    @rule(pick=SOME, other=SOME, key=KEYS, rarely=st.integers(0, 3))
    def delete_a_group_and_create_it_again(
        self, pick: int, other: int, key: GroupKey, rarely: int
    ) -> None:
        key = self.group(key)
        if rarely:
            return
        assert self.q(pick).delete_group(*key)
        self.model.delete_group(key, self.rows().bases())
        self.batches = [batch for batch in self.batches if batch.key != key]
        self.create(other, key)

    def create(self, pick: int, key: GroupKey) -> None:
        rules = self.model.groups[key].rules
        self.q(pick).group(
            *key, ordering=rules.ordering, policy=rules.policy, lease_seconds=rules.lease,
            retry_limit=rules.retry_limit, max_deliver=rules.max_deliver, backoff=rules.backoff,
            max_ack_pending=rules.window,
        )  # fmt: skip

    @invariant()
    def what_is_cached_is_right(self) -> None:
        for pick in range(len(self.sessions)):
            self.compared += check_cache(self.store_of(pick))


def _never(*_: object) -> None:
    raise AssertionError("a push has no verb of its own")
