"""The lag that SQL counts is the sum of that of each partition."""

import random

import pytest

import ackflow
from ackflow import VirtualClock
from ackflow.broker.broker import Broker
from ackflow.clock import micros
from ackflow.dialects.queen.verbs.lag import lags, late_partitions, partition_lags


@pytest.mark.parametrize("seed", range(4))
def test_lags_are_the_sums_of_the_partitions(clock: VirtualClock, seed: int) -> None:
    rng = random.Random(seed)
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        broker = q.broker
        assert isinstance(broker, Broker)
        for _ in range(80):
            partition = rng.choice("pqrstu")
            match rng.randrange(5):
                case 0 | 1:
                    delay = rng.choice((None, None, 30.0))
                    q.push("orders", [1] * rng.randrange(1, 4), partition=partition, delay=delay)
                case 2:
                    for message in q.pop(
                        "orders", batch=rng.randrange(1, 5), group=rng.choice("gh")
                    ):
                        message.ack()
                case 3:
                    # A copy is for one group, and hidden from the other.
                    for message in q.pop("orders", batch=1, group=rng.choice("gh")):
                        message.requeue()
                case 4:
                    q.pop("orders", batch=2, group=rng.choice("gh"), partition=partition)
            clock.advance(rng.choice((0.0, 1.0, 10.0)))
        broker.catch_up()
        found = {one.group: one for one in broker.look(lags, {})}
        for name, one in found.items():
            parts = broker.look(partition_lags, name)["orders"]
            behind = [part for part in parts if part.lag.messages]
            assert one.lag.messages == sum(part.lag.messages for part in behind)
            assert one.lag.oldest_at == min((part.lag.oldest_at for part in behind), default=None)
            assert one.partitions == len(behind)
            assert one.consumed == sum(part.consumed for part in parts)
            for seconds in (0, 5, 40, 10_000):
                before = clock.now() - micros(seconds)
                late = {part.partition: part for part in broker.look(late_partitions, before, 100)
                        if part.group == name}  # fmt: skip
                expected = [part for part in behind if (part.lag.oldest_at or 0) <= before]
                assert late == {part.partition: part for part in expected}
