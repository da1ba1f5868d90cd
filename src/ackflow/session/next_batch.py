"""Ack and pop, in one commit."""

from typing import TYPE_CHECKING, Any

from .. import validate
from ..broker.core import settle
from ..broker.core.ack_and_pop import ack_and_pop
from ..broker.core.handout import Handout
from ..broker.requests import PopRequest, Verdict
from ..options import QUEUE_MODE, Dialect
from ..validate import Duration
from .messages import Batch, Message, Settled, deliveries, in_slices, marks_of

if TYPE_CHECKING:
    from .session import Messages


class NextBatch:
    """The methods of a session that ack one batch and pop the next one."""

    def ack_and_pop(
        self: Any,
        messages: "Messages",
        queue: str,
        *,
        group: str = QUEUE_MODE,
        batch: int | None = None,
        wait: Duration = 0.0,
        lease_seconds: Duration | None = None,
        partition: str | None = None,
        partitions: int | None = None,
        consumer: str | None = None,
        dialect: Dialect = "native",
        create: bool = True,
    ) -> tuple[Settled, Batch[Message]]:
        """Mark messages as done and pop the next ones, in one commit; see `ack` and `pop`.

        Only a pop that finds nothing, and has time to `wait`, takes a second step.
        """
        request = self.pop_request(
            queue, group=group, batch=batch, lease_seconds=lease_seconds, partition=partition,
            partitions=partitions, consumer=consumer, dialect=dialect, create=create,
        )  # fmt: skip
        left = validate.seconds(wait, "wait")
        settled, handout = self.exchange(messages, request)
        if not handout.runs and (left > 0 or handout.again):
            handout = self.broker.pop(request, left)
        return settled, self.batch_of(handout)

    def exchange(self: Any, messages: "Messages", request: PopRequest) -> tuple[Settled, Handout]:
        """Ack messages and pop with a validated request, once."""
        some, verdict, settled = deliveries(messages), Verdict("ack"), Settled()
        if isinstance(messages, Batch):
            marks = messages.marks(verdict)
        else:
            marks = marks_of((message, verdict) for message in some)
        *first, last = list(in_slices(marks)) or [marks]
        store = self.broker.store.id if marks else 0  # asked for before anything is leased
        with self._acks.measure(len(some)) as call:
            for part in first:
                for outcome in self.broker.do(settle.settle_many, False, part, False):
                    settled.add(store, outcome)
            handout = self.broker.do(ack_and_pop, False, last, request)
            for outcome in handout.outcomes:
                settled.add(store, outcome)
            call.successful = settled.settled + settled.noop
            call.refused = len(settled.refused)
        return settled, handout
