"""Traces: events that consumers report about a message. Kept for a week."""

from msgspec import Struct

from ....broker.core.handout import is_binary, payload
from ....errors import NotFound
from ....ids import LaneId, PartitionId
from ....store.encryption import seal_bytes, unseal_bytes
from ....store.mapping import Row, trace_place
from ....store.tx import Tx
from .locate import Located, locate


class NewTrace(Struct):
    """An event to record about a message; `data` is JSON."""

    partition: PartitionId
    txid: str
    event: str
    data: bytes
    names: list[str]
    group: str | None = None
    consumer: str | None = None


class Trace(Struct):
    """A recorded event; `names` are the traces it belongs to."""

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
    """A trace name with its number of events and messages, and the time of the last one."""

    name: str
    traces: int
    messages: int
    last_at: int


class TracedMessage(Struct):
    """An event with its message, and the payload if that is still stored."""

    trace: Trace
    place: Located | None
    raw: bytes | None = None
    is_json: bool = True


def record(tx: Tx, trace: NewTrace) -> int:
    """Record an event about a message; refused when the message does not exist."""
    found = locate(tx, trace.partition, trace.txid)
    if found is None:
        raise NotFound("Message not found")
    sealed = found.queue.options.encrypted
    data = b"" if sealed else trace.data
    id: int = tx.insert("add_trace", trace.partition, trace.txid, found.lane.id, found.sequence,
                   trace.group, trace.consumer, trace.event, data, tx.now)  # fmt: skip
    if sealed:  # for its row, whose id is known now
        place = trace_place(id, found.lane.id, found.sequence)
        tx.run("set_trace_data", id, seal_bytes(trace.data, place))
    for name in dict.fromkeys(trace.names):
        tx.run("add_trace_name", name, id)
    return id


def of_message(tx: Tx, partition: PartitionId, txid: str) -> list[Trace]:
    """Return the events of a message, oldest first."""
    return [_trace(tx, row) for row in tx.all("traces_of", partition, txid)]


def by_name(tx: Tx, name: str, limit: int, offset: int) -> tuple[list[TracedMessage], int]:
    """Return the events of a trace name in order, and how many there are."""
    found = []
    for row in tx.all("traces_named", name, limit, offset):
        trace = _trace(tx, row)
        traced = TracedMessage(trace, locate(tx, trace.partition, trace.txid))
        if traced.place is not None and (segment := traced.place.segment) is not None:
            body, index = tx.body(segment), traced.place.sequence - segment.first
            traced.raw, traced.is_json = payload(body, index), not is_binary(body, index)
        found.append(traced)
    return found, int(tx.value("count_named", name))


def names(tx: Tx, limit: int, offset: int) -> tuple[list[TraceName], int]:
    """Return the trace names, most recently used first, and how many there are."""
    found = [TraceName(*row) for row in tx.all("trace_names", limit, offset)]
    return found, int(tx.value("count_trace_names"))


def _trace(tx: Tx, row: Row) -> Trace:
    trace = Trace(*[*row, [name for (name,) in tx.all("names_of_trace", row[0])]])
    trace.data = unseal_bytes(trace.data, trace_place(trace.id, trace.lane, trace.sequence))
    return trace
