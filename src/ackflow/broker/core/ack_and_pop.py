"""Settle what was handled and pop the next batch, in one commit."""

from msgspec import field, structs

from ...store.tx import Tx
from ..requests import Mark, PopRequest
from ..verb import verb
from .handout import Handout
from .pop import pop
from .settle import Outcome, settle_many


class NextHandout(Handout):
    """What was popped, and the outcome of each mark that was applied before it."""

    outcomes: list[Outcome] = field(default_factory=list)


@verb("read-write", lease="marks", repeatable=True)
def ack_and_pop(tx: Tx, marks: dict[int, list[Mark]], request: PopRequest) -> NextHandout:
    """Settle messages of any leases, then lease the next ones.

    A mark that is refused refuses neither the others nor the pop. A repeat finds the messages settled,
    and with a token in the request it answers with the same lease.

    On a queue that is spread over several databases it settles only and asks for a pop: the next
    messages may be in another database, which a consumer would never reach otherwise.
    """
    outcomes = settle_many(tx, marks, False)
    queue = tx.queue(request.queue)
    if queue is not None and queue.options.spread:
        return NextHandout(request.queue, request.group, tx.store, again=True, outcomes=outcomes)
    return NextHandout(**structs.asdict(pop(tx, request)), outcomes=outcomes)
