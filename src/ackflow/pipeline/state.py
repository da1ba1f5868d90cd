"""The messages of a pipeline, and the state it keeps in the queue's database.

loader ──block, end of file──► <name>.in ──► route ──end of a table──► <name>.ends ──► answer

A block is an unchanged piece of a file, cut at record boundaries. Its headers describe it, so that it can
be handled without being read. An end-of-file message says how many blocks of each file its worker sent.
Rows that cannot be read become dead letters of <name>.bad.

State: small keyed values, `pipeline/<name>/<kind>/<client>…`:

files, clients ─► handled, partials, bad ─► held ─► ended ─► done      cancelled, accepted: by the user

A cancelled client's messages are acknowledged unprocessed, and its state is deleted. Queues are not
purged: a purge would end the leases of a running router.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from .. import Session
from ..clock import SECOND
from ..errors import AckflowError, InvalidArgument, NotFound, QueueNotFound
from .declaration import Pipeline

MAX_KEYS = 100_000
MAX_RECOVERIES = 20
MAX_FILES, MAX_FILE_NAME = 4_000, 200
BLOCK, END = "block", "eof"


class Block(NamedTuple):
    """A piece of a file. `columns`: the columns of the file, in its order. `format`: csv or jsonl.

    `quoted`: a line break within quotes does not end a record. `plain`: CSV in ASCII without quotes.
    """

    file: str
    place: int
    data: bytes
    columns: tuple[str, ...] = ()
    format: str = "csv"
    quoted: bool = False
    plain: bool = False


class BlockHeaders(Struct, frozen=True):
    """The headers of a block. Its file, position and digest identify it."""

    client: str
    table: str
    worker: int
    number: int
    file: str
    place: int
    digest: str
    format: str = "csv"
    columns: str = "[]"
    quoted: bool = False
    plain: bool = False

    def text(self) -> dict[str, str]:
        """Return the headers of the message."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        return {"kind": BLOCK, **texts}

    @property
    def id(self) -> str:
        """The transaction id: the same block sent again adds nothing."""
        return f"{self.table}/{self.place}-{self.digest}"


class EndOfTable(Struct, frozen=True):
    """One of `workers` workers has sent all its blocks of a table; `files` counts them by file."""

    client: str
    table: str
    worker: int
    workers: int
    blocks: int
    files: dict[str, int] = {}

    def text(self) -> dict[str, str]:
        """Return the headers of the message; its payload is `files`."""
        return {"kind": END, "client": self.client, "table": self.table,
                "worker": str(self.worker), "workers": str(self.workers),
                "blocks": str(self.blocks)}  # fmt: skip

    def announced(self, file: str) -> int:
        """Return how many blocks of a file this worker sent; `file` may be shortened."""
        return sum(n for name, n in self.files.items() if name[:MAX_FILE_NAME] == file)


class EndForwarded(Struct):
    """All blocks of a table are folded; sent to every partition of the aggregators."""

    client: str
    table: str
    blocks: int


class BadRows(Struct):
    """Rows that cannot be read, or only in part; without rows, a whole file."""

    client: str
    table: str
    reason: str
    rows: list[str] = []


def read_headers(headers: Mapping[str, str]) -> BlockHeaders:
    """Decode the headers of a block; raises ValidationError."""
    given = {k: v for k, v in headers.items() if k in BlockHeaders.__struct_fields__}
    return msgspec.convert(given, BlockHeaders, strict=False)


def read_end(headers: Mapping[str, str], payload: bytes | bytearray | None) -> EndOfTable:
    """Decode an end-of-file message; raises ValidationError or DecodeError."""
    files = msgspec.json.decode(bytes(payload or b"{}"), type=dict[str, int])
    given = {k: v for k, v in headers.items() if k in EndOfTable.__struct_fields__}
    return msgspec.convert({**given, "files": files}, EndOfTable, strict=False)


def encode(message: object) -> msgspec.Raw:
    """Encode a message as the payload of a push."""
    return msgspec.Raw(msgspec.json.encode(message))


class ClientFinished(AckflowError):
    """The client is finished: its answers are written, and there is nothing to cancel."""

    code = "client_finished"
    status = 409


class TableKey(NamedTuple):
    """One table of one client."""

    table: str
    client: str

    def __str__(self) -> str:
        return f"(TableName.{self.table.upper()}, {self.client!r})"


class HeldEnds(Struct):
    """The number of unacknowledged end-of-file messages of a table, and the time of the first.

    `surplus`: which blocks arrived that these messages do not announce.
    """

    ends: int
    since: float
    surplus: str | None = None


class Handled(Struct):
    """The folded part of one table of one client: blocks, bytes, rows, and blocks by worker and file.

    Beyond `MAX_FILES` files, only blocks of the first ones are counted by file.
    """

    blocks: int = 0
    bytes: int = 0
    rows: int = 0
    workers: dict[str, dict[str, int]] = {}

    def add(self, worker: int, file: str, size: int) -> None:
        """Count one block."""
        self.blocks += 1
        self.bytes += size
        files = self.workers.setdefault(str(worker), {})
        name = file[:MAX_FILE_NAME]
        if name in files or sum(len(known) for known in self.workers.values()) < MAX_FILES:
            files[name] = files.get(name, 0) + 1


def read_state(q: Session, pipeline: Pipeline, *parts: str) -> dict[str, Any]:
    """Return all values whose key begins with `parts`, by the rest of their key."""
    prefix = pipeline.state_key(*parts, "")
    values = q.values(prefix, limit=MAX_KEYS)
    return {value.key.removeprefix(prefix): value.data for value in values}


def handled_tables(q: Session, pipeline: Pipeline) -> dict[TableKey, Handled]:
    """Return the folded part of every table."""
    found = {}
    for key, data in read_state(q, pipeline, "handled").items():
        client, _, table = key.rpartition("/")
        found[TableKey(table, client)] = msgspec.convert(data, Handled)
    return found


def ended_tables(q: Session, pipeline: Pipeline) -> set[TableKey]:
    """Return the tables whose end was forwarded."""
    names = (key.rpartition("/") for key in read_state(q, pipeline, "ended"))
    return {TableKey(table, client) for client, _, table in names}


def held_ends(q: Session, pipeline: Pipeline) -> dict[str, HeldEnds]:
    """Return the unacknowledged end-of-file messages that the router last reported.

    The keys are `client/table`.
    """
    value = q.value(pipeline.state_key("held"))
    return {} if value is None else msgspec.convert(value.data, dict[str, HeldEnds])


def pipeline_names(q: Session) -> list[str]:
    """Return the names of the pipelines that keep state in this database."""
    return sorted({value.key.split("/")[1] for value in q.values("pipeline/", limit=MAX_KEYS)})


def pipelines(q: Session) -> list[Pipeline]:
    """Return the pipelines that keep state in this database, without their declarations, which it
    does not have."""
    found: list[Pipeline] = []
    after: str | None = None
    while page := q.values("pipeline/", limit=1, after=after):
        name = page[0].key.split("/")[1]
        found.append(Pipeline(name, (), (), ()))
        after = f"pipeline/{name}0"  # the sign after the slash: what follows belongs to others
    return found


class Recovery(Struct, frozen=True):
    """A stage that recovered at a time: after how many seconds, and how many messages it had held."""

    stage: str
    at: float
    seconds: float
    held: int


def record_recovery(q: Session, pipeline: Pipeline, stage: str, seconds: float, held: int) -> None:
    """Store the last recoveries of a run, for the dashboard."""
    kept = [*recoveries(q, pipeline), Recovery(stage, broker_time(q), seconds, held)]
    t = q.transaction()
    t.put(pipeline.state_key("recoveries"), msgspec.to_builtins(kept[-MAX_RECOVERIES:]))
    t.commit()


def recoveries(q: Session, pipeline: Pipeline) -> list[Recovery]:
    """Return the last recoveries, the oldest first."""
    value = q.value(pipeline.state_key("recoveries"))
    return [] if value is None else msgspec.convert(value.data, list[Recovery])


def broker_time(q: Session) -> float:
    """Return the broker's clock in seconds, which all processes share."""
    return q.broker.clock.now() / SECOND


def announce_clients(q: Session, pipeline: Pipeline, clients: Iterable[str]) -> None:
    """Record clients before any of their data is sent, so that they can be cancelled."""
    announced = read_state(q, pipeline, "clients")
    new = set(clients) - {*announced, *cancelled_clients(q, pipeline)}
    if new:
        t = q.transaction()
        for client in sorted(new):
            t.put(pipeline.state_key("clients", client), True)
        t.commit()


def known_clients(q: Session, pipeline: Pipeline) -> set[str]:
    """Return every client that was announced or has sent anything."""
    handled = {key.client for key in handled_tables(q, pipeline)}
    held = {key.rpartition("/")[0] for key in held_ends(q, pipeline)}
    try:
        sent = {stats.name for stats in q.partitions(pipeline.inbox) if stats.messages}
    except QueueNotFound:
        sent = set()
    return {*read_state(q, pipeline, "clients"), *handled, *held, *sent}


def cancel(q: Session, pipeline: Pipeline, client: str) -> bool:
    """Cancel a client for good; return False if it was cancelled before.

    Raises ClientFinished for a finished client and NotFound for an unknown one.
    """
    if client in cancelled_clients(q, pipeline):
        return False
    check_open(q, pipeline, client, "cancelled")
    _mark(q, pipeline, "cancelled", client)
    delete_client(q, pipeline, client)
    return True


def accept(q: Session, pipeline: Pipeline, client: str) -> bool:
    """Accept blocks that no end of file announces; return False if they were accepted before.

    The answers of the client then include them.
    """
    if client in accepted_clients(q, pipeline):
        return False
    check_open(q, pipeline, client, "accepted")
    _mark(q, pipeline, "accepted", client)
    return True


def check_open(q: Session, pipeline: Pipeline, client: str, what: str) -> None:
    """Raise if a client is unknown, or finished."""
    if client in read_state(q, pipeline, "done"):
        raise ClientFinished(f"client {client!r} is finished: its answers are already written")
    if client not in known_clients(q, pipeline):
        raise NotFound(f"unknown client {client!r}; nothing was {what}")


def _mark(q: Session, pipeline: Pipeline, what: str, client: str) -> None:
    t = q.transaction()
    t.put(pipeline.state_key(what, client), True)
    t.commit()


def cancelled_clients(q: Session, pipeline: Pipeline) -> set[str]:
    """Return the clients that were cancelled."""
    return set(read_state(q, pipeline, "cancelled"))


def accepted_clients(q: Session, pipeline: Pipeline) -> set[str]:
    """Return the clients whose blocks are accepted although no end of file announces them."""
    return set(read_state(q, pipeline, "accepted"))


def delete_client(q: Session, pipeline: Pipeline, client: str) -> None:
    """Delete the counts and the names of the partial results of a client.

    Called again later, because a router that was at work may have written some after the first
    call.
    """
    keys = [pipeline.state_key(kind, client) for kind in ("clients", "accepted", "partials")
            if client in read_state(q, pipeline, kind)]  # fmt: skip
    for kind in ("handled", "ended", "bad"):
        prefix = pipeline.state_key(kind, client, "")
        keys += [value.key for value in q.values(prefix, limit=MAX_KEYS)]
    for key in keys:
        t = q.transaction()
        t.delete(key)
        t.commit()


class TableStatus(Struct):
    """The progress of one table of one client.

    `held`: unacknowledged end-of-file messages; `oldest_seconds`: the age of the oldest;
    `surplus`: which blocks arrived that these messages do not announce.
    """

    client: str
    table: str
    blocks: int = 0
    rows: int = 0
    held: int = 0
    oldest_seconds: float = 0.0
    state: str = "running"
    surplus: str | None = None


def table_statuses(q: Session, pipeline: Pipeline, alarm_after: float = 60.0) -> list[TableStatus]:
    """Return the status of every table; an end held longer than `alarm_after` is an alarm."""
    cancelled = cancelled_clients(q, pipeline)
    rows = {TableKey(table.name, client): TableStatus(client, table.name)
            for client in {*read_state(q, pipeline, "clients"), *cancelled}
            for table in pipeline.tables}  # fmt: skip
    for key, handled in handled_tables(q, pipeline).items():
        rows[key] = TableStatus(key.client, key.table, handled.blocks, handled.rows)
    now = broker_time(q)
    for name, held in held_ends(q, pipeline).items():
        client, _, table = name.rpartition("/")
        row = rows.setdefault(TableKey(table, client), TableStatus(client, table))
        row.held, row.oldest_seconds = held.ends, now - held.since
        row.surplus = held.surplus
    done = read_state(q, pipeline, "done")
    for row in rows.values():
        row.state = _state(row, done, cancelled, alarm_after)
    return sorted(rows.values(), key=lambda row: (row.client, row.table))


def _state(
    row: TableStatus, done: dict[str, object], cancelled: set[str], alarm_after: float
) -> str:
    if row.client in cancelled:
        return "cancelled"
    if row.client in done:
        return "finished" if done[row.client] is True else f"failed: {done[row.client]}"
    if row.surplus:
        return f"ALARM: unannounced blocks: {row.surplus}"
    if row.held and row.oldest_seconds > alarm_after:
        return "ALARM: an end-of-file message is stuck"
    return "ends held" if row.held else "running"


def stuck(rows: list[TableStatus]) -> list[TableStatus]:
    """Return the tables in alarm."""
    return [row for row in rows if row.state.startswith("ALARM")]


def prometheus_text(rows: list[TableStatus], pipeline: Pipeline) -> str:
    """Format the statuses for the text-file collector of Prometheus."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ModuleNotFoundError:
        raise InvalidArgument(
            "metrics need prometheus-client: pip install ackflow[server]"
        ) from None
    registry = CollectorRegistry()
    labels = ("pipeline", "client", "table")
    gauges = {
        "blocks": Gauge("ackflow_pipeline_blocks_handled", "Blocks handled", labels,
                        registry=registry),
        "rows": Gauge("ackflow_pipeline_rows_handled", "Rows handled", labels, registry=registry),
        "held": Gauge("ackflow_pipeline_eof_unacknowledged", "Ends of file held", labels,
                      registry=registry),
        "oldest_seconds": Gauge("ackflow_pipeline_eof_oldest_seconds",
                                "Age of the oldest held end-of-file message", labels,
                                registry=registry),
        "alarm": Gauge("ackflow_pipeline_alarm", "1 if the table is in alarm", labels,
                       registry=registry),
    }  # fmt: skip
    for row in rows:
        values = {"alarm": float(row.state.startswith("ALARM")), "blocks": row.blocks,
                  "rows": row.rows, "held": row.held,
                  "oldest_seconds": row.oldest_seconds}  # fmt: skip
        for name, gauge in gauges.items():
            gauge.labels(pipeline.name, row.client, row.table).set(values[name])
    return generate_latest(registry).decode()
