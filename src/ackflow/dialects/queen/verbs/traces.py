"""Traces: what consumers tell of a message while they work on it. Kept for a week."""

from msgspec import Struct

from ....broker.core.handout import is_binary, payload
from ....errors import NotFound
from ....ids import LaneId, PartitionId
from ....store.mapping import Row
from ....store.tx import Tx
from .locate import Located, locate


class NewTrace(Struct):
    """What is told of a message; `data` is JSON."""

    partition: PartitionId
    txid: str
    event: str
    data: bytes
    names: list[str]
    group: str | None = None
    consumer: str | None = None


class Trace(Struct):
    """What was told; `names` are the traces it belongs to."""

    id: int
    partition: PartitionId
    txid: str
    lane: LaneId
    sequence: int
    group: str | None
    consumer: str | None
    event: str
    data: bytes
    at: int
    names: list[str]


class TraceName(Struct):
    """A name with how many traces and messages it has, and the time of the last."""

    name: str
    traces: int
    messages: int
    last_at: int


class TracedMessage(Struct):
    """A trace with the message it tells of, and the payload of that if it is still stored."""

    trace: Trace
    place: Located | None
    raw: bytes | None = None
    is_json: bool = True


def record(tx: Tx, trace: NewTrace) -> int:
    """Keep what is told of a message; refused when there is no such message."""
    found = locate(tx, trace.partition, trace.txid)
    if found is None:
        raise NotFound("Message not found")
    id: int = tx.insert("add_trace", trace.partition, trace.txid, found.lane.id, found.sequence,
                   trace.group, trace.consumer, trace.event, trace.data, tx.now)  # fmt: skip
    for name in dict.fromkeys(trace.names):
        tx.run("add_trace_name", name, id)
    return id


def of_message(tx: Tx, partition: PartitionId, txid: str) -> list[Trace]:
    """Everything told of a message, oldest first."""
    return [_trace(tx, row) for row in tx.all("traces_of", partition, txid)]


def by_name(tx: Tx, name: str, limit: int, offset: int) -> tuple[list[TracedMessage], int]:
    """The traces of a name in the order they were told, and how many there are."""
    found = []
    for row in tx.all("traces_named", name, limit, offset):
        trace = _trace(tx, row)
        told = TracedMessage(trace, locate(tx, trace.partition, trace.txid))
        if told.place is not None and (segment := told.place.segment) is not None:
            body, index = tx.body(segment), told.place.sequence - segment.first
            told.raw, told.is_json = payload(body, index), not is_binary(body, index)
        found.append(told)
    return found, int(tx.value("count_named", name))


def names(tx: Tx, limit: int, offset: int) -> tuple[list[TraceName], int]:
    """Every name, the one told of last first, and how many there are."""
    found = [TraceName(*row) for row in tx.all("trace_names", limit, offset)]
    return found, int(tx.value("count_trace_names"))


def _trace(tx: Tx, row: Row) -> Trace:
    return Trace(*[*row, [name for (name,) in tx.all("names_of_trace", row[0])]])
