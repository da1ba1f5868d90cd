"""Verbs that share a transaction do the same as one after the other, each in its own.

A group commit writes the rows of its verbs together, and answers most reads from what it knows. Two
databases get the same verbs, one of them in groups; the answers and all rows must be equal but for
random numbers, and the grouped one must agree with a recount. The order of the verbs in a group is
the serial order; what a verb does on its own is compared with the model in `test_broker`.
"""

import os
import threading
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.core.handout import Handout, payload
from ackflow.broker.core.pop import pop
from ackflow.broker.core.settle import extend, settle
from ackflow.broker.requests import Chunk, Mark, PopRequest, PushRequest, Verdict
from ackflow.dialects.pushpop.lock import settle_lock
from ackflow.dialects.queen.verbs.settle_by_name import NamedMessage, settle_named
from ackflow.errors import AckflowError
from ackflow.ids import PartitionId, message_id
from ackflow.options import Dialect
from ackflow.store.job import Job
from ackflow.store.tx import Tx

from .recount import Rows, check_rows

Step = tuple[Any, ...]
GROUPS: dict[str, Dialect] = {"shared": "native", "ordered": "queen", "locked": "pushpop"}
VERDICTS = ("ack", "nack", "release", "reject", "requeue", "dead_letter")
QUEUES, PARTITIONS = st.sampled_from("ab"), st.sampled_from(("p", "q", "r"))

PUSH = st.tuples(
    st.just("push"), QUEUES, PARTITIONS, st.integers(0, 1), st.integers(1, 3),
    st.sampled_from((None, None, None, 5.0)),
)  # fmt: skip
POP = st.tuples(
    st.just("pop"), QUEUES, st.sampled_from(sorted(GROUPS)), st.sampled_from((1, 1, 2, 5)),
    st.sampled_from((None, None, None, "p")), st.sampled_from((False, False, False, True)),
)  # fmt: skip
LEASE = st.integers(0, 8)  # counted from the newest
SETTLE = st.tuples(st.just("settle"), LEASE, st.sampled_from(VERDICTS), st.booleans())
NAMED = st.tuples(st.just("named"), LEASE, st.sampled_from(("ack", "ack", "nack", None)))
LOCK = st.tuples(st.just("lock"), LEASE, st.sampled_from(("ack", "release")))
EXTEND = st.tuples(st.just("extend"), LEASE)
STEPS = st.one_of(PUSH, POP, POP, POP, SETTLE, SETTLE, NAMED, LOCK, EXTEND)
GROUP_OF_STEPS = st.tuples(
    st.lists(STEPS, min_size=1, max_size=12), st.sampled_from((0.0, 0.001, 6.0, 40.0, 400.0))
)


class Side:
    """One of the two databases, and the leases that its pops have granted."""

    def __init__(self, clock: VirtualClock) -> None:
        self.q: Session = ackflow.connect(":memory:", clock=clock, upkeep=False)
        self.writer = self.q.broker.writer  # type: ignore[union-attr]
        self.leases: list[Handout] = []
        for queue in "ab":  # lanes get their ids when the first message is written
            for partition in "pqr":
                for priority in (0, 1):
                    self.q.push(queue, [0], partition=partition, priority=priority)

    def job(self, step: Step) -> Job | None:
        """The job of a step; None if it is about a lease that does not exist."""
        kind, *more = step
        if kind == "push":
            return Job(_never, (), True, _push(*more))
        if kind == "pop":
            queue, group, batch, partition, auto_ack = more
            return Job(pop, (PopRequest(queue, group, "c", batch, partition=partition,
                             auto_ack=auto_ack, dialect=GROUPS[group]),), False)  # fmt: skip
        if more[0] >= len(self.leases):
            return None
        lease = self.leases[-1 - more[0]]
        assert lease.token is not None
        run = lease.runs[-1]
        if kind == "settle":
            verb, whole = more[1:]
            part = Mark(Verdict(verb), run.lane, [run.hi - 1, run.hi])
            mark = Mark(Verdict(verb)) if whole else part
            return Job(settle, (lease.token, [mark]), True)
        if kind == "named":
            verdict = None if more[1] is None else Verdict(more[1], yields=more[1] == "nack")
            name = message_id(lease.store, run.lane, run.hi - 1)
            item = NamedMessage(PartitionId(run.home), name, verdict, lease.group, lease.token)
            return Job(settle_named, ([item],), True)
        if kind == "lock":
            return Job(settle_lock, (lease.queue, lease.group, lease.token, Verdict(more[1])), True)
        return Job(extend, (lease.token, None), False)

    def together(self, jobs: list[Job]) -> None:
        """Run jobs in one transaction."""
        left = threading.Semaphore(0)
        commits = self.writer.commits
        for job in jobs:
            job.on_answer = lambda _: left.release()
        self.writer.submit(jobs)
        for _ in jobs:
            assert left.acquire(timeout=60)
        assert self.writer.commits == commits + 1

    def apart(self, jobs: list[Job]) -> None:
        """Run jobs one after the other."""
        for job in jobs:
            try:
                job.answer = self.writer.run(job.verb, job.args, synced=job.synced, merge=job.merge)
            except AckflowError as refusal:
                job.error = refusal

    def take(self, jobs: list[Job]) -> list[object]:
        """Remember what was leased, and return all answers without random numbers."""
        found: list[object] = []
        for job in jobs:
            if job.error is not None:
                assert isinstance(job.error, AckflowError), repr(job.error)
                found.append((type(job.error).__name__, str(job.error)))
            elif isinstance(job.answer, Handout):
                if job.answer.token is not None and job.answer.runs:
                    self.leases.append(job.answer)
                found.append(_shown(job.answer))
            else:
                found.append(msgspec.to_builtins(job.answer, enc_hook=str))
        return found

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        return self.q.broker.read(_rows)  # type: ignore[union-attr,no-any-return]


def _never(_: Tx) -> None:
    raise AssertionError("pushes are merged")


def _push(queue: str, partition: str, priority: int, n: int, delay: float | None) -> PushRequest:
    ends = array("i", [2 * (i + 1) for i in range(n)])
    return PushRequest([Chunk(queue, partition, priority, delay, ends, b"10" * n)])


def _shown(found: Handout) -> tuple[Any, ...]:
    runs = [
        (r.lane, r.lo, r.hi, r.created_at, r.deliveries, r.failures, bool(r.redelivered), r.number,
         r.pending, [payload(r.body, i - r.first) for i in range(r.lo, r.hi)])
        for r in found.runs
    ]  # fmt: skip
    parts = [part for run in runs for part in _single(run)]  # segments are cut in other places
    return parts, found.token is None, found.expires_at, found.why, found.retry_at


def _single(run: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    lane, lo, hi, at, deliveries, failures, again, number, pending, payloads = run
    return [
        (lane, lo + i, at, deliveries, failures, again, number + i,
         pending + (0 if again else hi - lo - 1 - i), payloads[i])
        for i in range(hi - lo)
    ]  # fmt: skip


TABLES = {
    "lane_rows": "select id, queue, partition, priority, base, head, last_at, odd, copies from lane_rows",
    "cursors": "select lane, grp, partition, priority, next, served, ready, blocked, delivered, "
    "consumed, failed, done, dead, skipped, purged, expired, hidden, copies, last_seq, last_at "
    "from cursors",
    "claims": "select lane, grp, lease, lo, hi, n, ranges, state, at, since, deliveries, failures, "
    "redelivered, error, acked_at from claims",
    "leases": "select id, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, "
    "parts, fates from leases",
    "dead": "select grp, lane, seq, kind, reason, deliveries, failures, died_at from dead",
    "tallies": "select grp, name, n from tallies",
}


def _rows(tx: Tx) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(tx._execute(sql, ()), key=repr)  # claims have random ids
        for name, sql in TABLES.items()
    }


def _recount(tx: Tx) -> None:
    check_rows(Rows(tx))


@settings(
    max_examples=int(os.environ.get("ACKFLOW_EXAMPLES", "120")),
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(GROUP_OF_STEPS, min_size=1, max_size=12))
def test_a_group_of_verbs_does_the_same_as_one_after_the_other(
    groups: list[tuple[list[Step], float]],
) -> None:
    clock = VirtualClock()
    grouped, single = Side(clock), Side(clock)
    try:
        for steps, seconds in groups:
            answers = []
            for side, run in _both(grouped, single):
                jobs = [job for step in steps if (job := side.job(step))]
                if jobs:
                    run(jobs)
                answers.append(side.take(jobs))
            assert answers[0] == answers[1], steps
            assert grouped.rows() == single.rows(), steps
            grouped.q.broker.read(_recount)  # type: ignore[union-attr]
            clock.advance(seconds)
    finally:
        grouped.q.close()
        single.q.close()


def _both(grouped: Side, single: Side) -> list[tuple[Side, Callable[[list[Job]], None]]]:
    return [(grouped, grouped.together), (single, single.apart)]
