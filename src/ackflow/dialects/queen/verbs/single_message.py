"""One message by partition and transaction id: its details, removal and retry."""

from msgspec import Struct

from .... import ids
from ....broker.core.admin.admin import delete_message
from ....broker.core.dead_letters import redrive
from ....broker.core.handout import payload
from ....broker.requests import DeadFilter
from ....errors import NotFound
from ....ids import PartitionId
from ....store.records import NO_REST, DeadRow, Queue
from ....store.tx import Tx
from .locate import Located, letters, locate
from .recent import Recent, describe


class MessageDetails(Struct):
    """A message, stored or dead, and its dead letters."""

    place: Located
    id: str
    created_at: int
    raw: bytes
    is_json: bool
    txid: str
    headers: dict[str, str]
    found: Recent | None
    letters: list[DeadRow]
    groups: list[str]


def message_details(tx: Tx, partition: PartitionId, txid: str) -> MessageDetails:
    """Return everything about one message."""
    place = _found(tx, partition, txid)
    dead = letters(tx, place)
    id = ids.message_id(tx.store, place.lane.id, place.sequence)
    groups = [group.name for group in tx.groups(place.queue.id)]
    if place.segment is None:
        row = dead[0]
        rest = row.rest or NO_REST
        return MessageDetails(
            place, id, row.created_at, row.payload, not rest.binary, rest.transaction_id(0, id),
            rest.headers.get(0, {}), None, dead, groups,
        )  # fmt: skip
    body, index = tx.body(place.segment), place.sequence - place.segment.first
    rest = body.rest or NO_REST
    return MessageDetails(
        place, id, place.segment.created_at, payload(body, index), not rest.is_binary(index),
        rest.transaction_id(index, id), rest.headers.get(index, {}),
        describe(tx, place.queue, place.lane, place.segment, place.sequence), dead, groups,
    )  # fmt: skip


def queue_of(tx: Tx, partition: PartitionId) -> str | None:
    """Return the name of the queue of a partition."""
    home = tx.partition_by_id(partition)
    queue: Queue | None = tx.queue_by_id(home.queue) if home else None
    return queue.name if queue else None


def remove(tx: Tx, partition: PartitionId, txid: str) -> bool:
    """Delete a stored message for every group; False when it is not stored."""
    place = locate(tx, partition, txid)
    if place is None or place.segment is None:
        return False
    id = ids.message_id(tx.store, place.lane.id, place.sequence)
    return delete_message(tx, place.queue.name, id)


def retry(tx: Tx, partition: PartitionId, txid: str) -> int:
    """Redrive the dead letters of a message to their groups; returns how many."""
    place = _found(tx, partition, txid)
    which = DeadFilter(place.queue.name, ids=[row.id for row in letters(tx, place)])
    if not which.ids:
        raise NotFound("the message is not a dead letter")
    sent = 0
    while n := redrive(tx, which, None):
        sent += n
    return sent


def _found(tx: Tx, partition: PartitionId, txid: str) -> Located:
    place = locate(tx, partition, txid)
    if place is None:
        raise NotFound("Message not found")
    return place
