"""Reports how far queries are behind: a listener that reads what the sources report to Spark."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

log = logging.getLogger("ackflow.spark")


class SourceLag(Struct, rename="camel"):
    """What the group of one source still had to do when a query reported its progress.

    `min_offsets_behind_latest`, `max_…` and `avg_…` are Kafka's metrics: the undelivered messages of
    each lane of the queue.
    """

    queue: str
    group: str
    ready: int
    leased: int
    waiting: int
    done: int
    dead: int
    oldest_seconds: float | None
    min_offsets_behind_latest: int
    max_offsets_behind_latest: int
    avg_offsets_behind_latest: float

    @property
    def metrics(self) -> dict[str, str]:
        """Kafka's metrics of a source, under its names."""
        return {
            "minOffsetsBehindLatest": str(self.min_offsets_behind_latest),
            "maxOffsetsBehindLatest": str(self.max_offsets_behind_latest),
            "avgOffsetsBehindLatest": str(self.avg_offsets_behind_latest),
        }


Report = Callable[[str, int, SourceLag], None]
_decode = msgspec.json.Decoder(SourceLag).decode


def log_lag(query: str, batch: int, lag: SourceLag) -> None:
    """Log the lag of a source."""
    log.info(
        "%s batch %s: queue %s, group %s: %s ready, %s leased, %s waiting, %s dead",
        query, batch, lag.queue, lag.group, lag.ready, lag.leased, lag.waiting, lag.dead,
    )  # fmt: skip


class LagListener(StreamingQueryListener):
    """Calls a function with (query, batch, lag) for each source and each progress of a query."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for source in progress.sources:
            lag = _lag_of(source.latestOffset)
            if lag is not None:
                self._report(progress.name or str(progress.id), progress.batchId, lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def listener(spark: SparkSession, report: Report = log_lag) -> LagListener:
    """Report the lag of every query of a session, as log records or to a function.

    Returns the listener, which `spark.streams.removeListener` removes.
    """
    found = LagListener(report)
    spark.streams.addListener(found)
    return found


def _lag_of(latest: Any) -> SourceLag | None:
    """Return the lag in a latest offset, or None if a source of another kind reported it."""
    try:
        return _decode(latest)
    except (msgspec.MsgspecError, TypeError):
        return None
