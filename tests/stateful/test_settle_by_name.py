"""Random walks over settling by name in an ordered group: nothing is lost, and order holds."""

import random

import pytest

import ackflow
from ackflow import Session, VirtualClock, ids
from ackflow.broker.requests import Verdict
from ackflow.dialects.queen.verbs.settle_by_name import NamedMessage, settle_named
from ackflow.store.tx import Tx

from .recount import Rows, check_rows

VERDICTS = [
    Verdict("ack"), Verdict("ack"), Verdict("ack", up_to=True),
    Verdict("nack", yields=True), Verdict("nack", delay=20, yields=True),
    Verdict("release", yields=True), Verdict("dead_letter"), None,
]  # fmt: skip


class Walk:
    def __init__(self, q: Session, clock: VirtualClock, seed: int) -> None:
        self.q, self.clock, self.random = q, clock, random.Random(seed)
        self.pushed = 0
        self.held: list[ackflow.Message] = []
        self.done: set[str] = set()

    def push(self) -> None:
        self.pushed += 1
        partition, priority = f"p{self.random.randrange(2)}", self.random.randrange(2)
        self.q.push("jobs", self.pushed, partition=partition, priority=priority)

    def leases(self) -> set[tuple[str, int]]:
        """Return the live leases, by partition."""

        def look(tx: Tx) -> set[tuple[str, int]]:
            queue = tx.queue("jobs")
            group = tx.group(queue.id, "g") if queue else None
            assert group is not None
            ids = [row[0] for row in tx.all("live_leases", group.id, tx.now, 100)]
            leases = [lease for id in ids if (lease := tx.lease_by_id(id))]
            homes = {
                (claim.lane, lease.id) for lease in leases for claim in tx.claims_of_lease(lease)
            }
            lanes = {lane: tx.lane(lane) for lane, _ in homes}
            names = {
                lane: home.name
                for lane, row in lanes.items()
                if row and (home := tx.partition_by_id(row.partition))
            }
            return {(names[lane], lease) for lane, lease in homes}

        return self.q.broker.look(look)

    def pop(self) -> None:
        before = self.leases()
        batch = self.q.pop(
            "jobs", group="g", batch=self.random.randrange(1, 5), dialect="queen",
            partitions=self.random.randrange(1, 3), lease_seconds=30,
        )  # fmt: skip
        served = {message.partition for message in batch}
        for home in served:
            mine = [(m.priority, m.sequence) for m in batch if m.partition == home]
            assert mine == sorted(mine)
            assert [name for name, _ in self.leases()].count(home) == 1
        kept = {one for one in before if one[0] not in served}
        assert kept <= self.leases(), "taken over by a pop that got nothing there"
        assert not self.done & {message.id for message in batch}, "handed out after its ack"
        self.held += batch

    def settle(self) -> None:
        if not self.held:
            return
        message = self.random.choice(self.held[-6:])
        home = self.q.broker.do(
            lambda tx: tx.partition(tx.queue("jobs").id, message.partition).id, False
        )
        lease = self.random.random() < 0.7 and message.token
        verdict = self.random.choice(VERDICTS)
        item = NamedMessage(
            home, message.id, verdict, "g", ids.parse_token(message.token or "") if lease else None
        )
        (told,) = self.q.broker.do(settle_named, False, [item])
        if told.error is None and verdict is not None and verdict.verb == "ack":
            self.done.add(message.id)

    def step(self) -> None:
        self.random.choice([self.push, self.pop, self.settle, self.settle, self.settle])()
        if self.random.random() < 0.1:
            self.clock.advance(self.random.choice([1, 20, 31]))
        self.q.broker.look(lambda tx: check_rows(Rows(tx)))

    def finish(self) -> None:
        """All remaining messages are delivered, in order."""
        self.clock.advance(1000)
        while batch := self.q.pop("jobs", group="g", batch=9, partitions=9, dialect="queen"):
            for message in batch:
                assert message.id not in self.done
                message.ack()
                self.done.add(message.id)


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_over_named_settles_loses_nothing(clock: VirtualClock, seed: int) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.group("jobs", "g", dialect="queen")
        walk = Walk(q, clock, seed)
        for _ in range(150):
            walk.step()
        walk.finish()
        counts = q.group_stats("jobs", "g").counts
        assert (counts.ready, counts.leased, counts.waiting) == (0, 0, 0)
        assert counts.done + counts.dead == walk.pushed
