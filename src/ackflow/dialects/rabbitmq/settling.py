"""Settling: the verdicts of AMQP methods, as marks on leases."""

from itertools import takewhile

from ...broker.core.settle import settle_many
from ...broker.requests import Mark, Verdict
from ...store.tx import Tx
from .call_batching import Batch
from .consumers import Delivery
from .errors import AmqpError

Settled = list[tuple[list[Delivery], Verdict]]
ACK, NACK, RELEASE, REJECT = (Verdict(verb) for verb in ("ack", "nack", "release", "reject"))


def marks_of(settled: Settled) -> dict[int, list[Mark]]:
    """The marks of deliveries by lease; neighbours of a lane become one range."""
    marks: dict[int, list[Mark]] = {}
    for some, verdict in settled:
        for delivery in some:
            of_lease = marks.setdefault(delivery.held.token, [])
            last = of_lease[-1] if of_lease else None
            at = delivery.sequence
            if (
                last is not None
                and last.verdict is verdict
                and last.lane == delivery.lane
                and last.ranges is not None
                and last.ranges[-1] == at
            ):
                last.ranges[-1] = at + 1
            else:
                of_lease.append(Mark(verdict, delivery.lane, [at, at + 1]))
    return marks


def settle_batch(tx: Tx, batch: Batch[Settled]) -> None:
    """Settle what several calls named."""
    settle_many(tx, marks_of([one for settled in batch.take() for one in settled]), False)


def take_unacked(unacked: dict[int, Delivery], tag: int, multiple: bool) -> list[Delivery]:
    """Take the deliveries that a method names from those of a channel, which are in order."""
    if multiple and not tag:
        found = list(unacked.values())
        unacked.clear()
        return found
    if tag not in unacked:
        raise AmqpError(406, f"unknown delivery tag {tag}")
    before = list(takewhile(lambda one: one != tag, unacked)) if multiple else []
    return [unacked.pop(one) for one in (*before, tag)]
