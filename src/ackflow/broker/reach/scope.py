"""The queues that a call touches through what belongs to them: leases, readers, producers, stages."""

from ...store.tx import Tx
from ..core.leases import queue_of_lease
from ..core.stage import published, stage_queues
from ..readers.records import batches_of_query_batch, reader_queue
from ..verb import Scope


def queues_behind(tx: Tx, scope: Scope) -> set[str]:
    """Return the names of these queues; what is unknown belongs to none."""
    found = {queue_of_lease(tx, token) for token in scope.leases}
    readers = {one.reader for which in scope.batches for one in batches_of_query_batch(tx, *which)}
    found |= {reader_queue(tx, reader) for reader in scope.readers | readers}
    for producer in scope.producers:
        known = published(tx, producer)
        found.update(known.queues if known is not None else ())
    for stage in scope.stages:
        found |= stage_queues(tx, stage)
    return {queue for queue in found if queue is not None}
