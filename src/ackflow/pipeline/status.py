"""How far each table of each client is, and which ends of file are not acknowledged yet."""

from msgspec import Struct

from .. import Session
from ..errors import InvalidArgument
from .cancel import cancelled
from .declaration import Pipeline
from .held import waiting
from .keeping import broker_time, kept


class Row(Struct):
    """One table of one client. `oldest_seconds`: how long its oldest end of file is waiting."""

    client: str
    table: str
    handled: int = 0
    held: int = 0
    oldest_seconds: float = 0.0
    state: str = "running"


def look(q: Session, pipeline: Pipeline, alarm_after: float = 60.0) -> list[Row]:
    """Every table of every client; an end of file held for too long is an ALARM."""
    rows = {(client, table.name): Row(client, table.name)
            for client in {*kept(q, pipeline, "clients"), *cancelled(q, pipeline)}
            for table in pipeline.tables}  # fmt: skip
    for key, handled in kept(q, pipeline, "handled").items():
        client, _, table = key.rpartition("/")
        rows[client, table] = Row(client, table, int(handled))
    now = broker_time(q)
    for key, unacked in waiting(q, pipeline).items():
        client, _, table = key.rpartition("/")
        row = rows.setdefault((client, table), Row(client, table))
        row.held, row.oldest_seconds = unacked.ends, now - unacked.since
    finished = set(kept(q, pipeline, "done"))
    gone = cancelled(q, pipeline)
    for row in rows.values():
        row.state = _state(row, finished, gone, alarm_after)
    return [rows[key] for key in sorted(rows)]


def _state(row: Row, finished: set[str], gone: set[str], alarm_after: float) -> str:
    if row.client in gone:
        return "cancelled"
    if row.client in finished:
        return "finished"
    if row.held and row.oldest_seconds > alarm_after:
        return "ALARM: an end of file is stuck"
    return "ends held" if row.held else "running"


def stuck(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.state.startswith("ALARM")]


def exposition(rows: list[Row], pipeline: Pipeline) -> str:
    """The rows for Prometheus, as its text-file collector takes them."""
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
                                "Age of the oldest end of file that is held", labels,
                                registry=registry),
    }  # fmt: skip
    for row in rows:
        for name, gauge in gauges.items():
            gauge.labels(pipeline.name, row.client, row.table).set(getattr(row, name))
    return generate_latest(registry).decode()
