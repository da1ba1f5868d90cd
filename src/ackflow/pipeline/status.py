"""The progress of each table of each client, and its unacknowledged end-of-file messages."""

from msgspec import Struct

from .. import Session
from ..errors import InvalidArgument
from .cancel import cancelled_clients
from .declaration import Pipeline
from .state import broker_time, held_ends, read_state


class TableStatus(Struct):
    """The progress of one table of one client.

    `held`: unacknowledged end-of-file messages; `oldest_seconds`: the age of the oldest.
    """

    client: str
    table: str
    handled: int = 0
    held: int = 0
    oldest_seconds: float = 0.0
    state: str = "running"


def table_statuses(q: Session, pipeline: Pipeline, alarm_after: float = 60.0) -> list[TableStatus]:
    """Return the status of every table; an end held longer than `alarm_after` is an alarm."""
    cancelled = cancelled_clients(q, pipeline)
    rows = {(client, table.name): TableStatus(client, table.name)
            for client in {*read_state(q, pipeline, "clients"), *cancelled}
            for table in pipeline.tables}  # fmt: skip
    for key, handled in read_state(q, pipeline, "handled").items():
        client, _, table = key.rpartition("/")
        rows[client, table] = TableStatus(client, table, int(handled))
    now = broker_time(q)
    for key, held in held_ends(q, pipeline).items():
        client, _, table = key.rpartition("/")
        row = rows.setdefault((client, table), TableStatus(client, table))
        row.held, row.oldest_seconds = held.ends, now - held.since
    finished = set(read_state(q, pipeline, "done"))
    for row in rows.values():
        row.state = _state(row, finished, cancelled, alarm_after)
    return [rows[key] for key in sorted(rows)]


def _state(row: TableStatus, finished: set[str], cancelled: set[str], alarm_after: float) -> str:
    if row.client in cancelled:
        return "cancelled"
    if row.client in finished:
        return "finished"
    if row.held and row.oldest_seconds > alarm_after:
        return "ALARM: an end of file is stuck"
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
        "handled": Gauge("ackflow_pipeline_batches_handled", "Batches handled", labels,
                         registry=registry),
        "held": Gauge("ackflow_pipeline_eof_unacknowledged", "Ends of file held", labels,
                      registry=registry),
        "oldest_seconds": Gauge("ackflow_pipeline_eof_oldest_seconds",
                                "Age of the oldest held end of file", labels,
                                registry=registry),
    }  # fmt: skip
    for row in rows:
        for name, gauge in gauges.items():
            gauge.labels(pipeline.name, row.client, row.table).set(getattr(row, name))
    return generate_latest(registry).decode()
