"""The stages of a pipeline. Each runs in a process of its own until it is stopped."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from .. import Session, connect
from ..errors import AckflowError, InvalidArgument
from . import preflight
from .aggregator import Aggregator
from .declaration import Pipeline, load
from .finisher import Finisher
from .loader import BATCH_ROWS, send_tables
from .state import read_state
from .supervisor import (
    PARENT,
    STANDBY_NICENESS,
    PipelineFailed,
    TakeOverSignal,
    aggregator_name,
    error_summary,
    report_working,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_DECLARATION = Path(__file__).parent / "examples" / "coffee_shop.py"
STANDBY_POLL = 5.0
log = logging.getLogger("ackflow.pipeline")


class Settings(Struct, frozen=True, kw_only=True):
    """Where a pipeline reads and writes, and how many workers and shards it has."""

    data: str
    out: str
    db: str | None = None
    declaration: str = str(DEFAULT_DECLARATION)
    master: str = "local[2]"
    workers: int = 3
    shards: int = 4
    rows: int = BATCH_ROWS
    messages: int = 400
    token: str | None = None
    standby: bool = True

    @property
    def url(self) -> str:
        return self.db or str(Path(self.out).absolute() / "pipeline.db")

    def pipeline(self) -> Pipeline:
        return load(self.declaration)

    def session(self, consumer: str) -> Session:
        return connect(self.url, consumer=consumer, token=self.token)


def check_sizes(q: Session, pipeline: Pipeline, settings: Settings, *names: str) -> None:
    """Raise if sizes differ from those of the first run: batch and shard numbers depend on them."""
    given = {name: getattr(settings, name) for name in names}
    stored = read_state(q, pipeline, "width")
    used = {name: stored.get(name, n) for name, n in given.items()}
    if used != given:
        sizes = ", ".join(f"{n} {name}" for name, n in used.items())
        raise InvalidArgument(f"this run began with {sizes}; continue with these, or start over "
                              "with another out folder and database")  # fmt: skip
    t = q.transaction()
    for name, n in given.items():
        t.put(pipeline.state_key("width", name), n)
    t.commit()


class StopSignal:
    """True after SIGTERM or SIGINT, and when the run that started this process is gone."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._parent = int(os.environ.get(PARENT, 0))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._event.set())

    def __bool__(self) -> bool:
        return self._event.is_set() or self._orphaned()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds) or self._orphaned()

    def _orphaned(self) -> bool:
        return self._parent not in (0, os.getppid())


def worker(settings: Settings, number: int) -> None:
    """Send one worker's share of the data and return."""
    if not 0 <= number < settings.workers:
        raise InvalidArgument(
            f"worker must be an integer from 0 to {settings.workers - 1}, got {number}"
        )
    with settings.session(f"upstream-{number}") as q:
        pipeline = settings.pipeline()
        check_sizes(q, pipeline, settings, "workers", "rows")
        report_working(q, pipeline, f"worker-{number}")
        data = Path(settings.data)
        sent = send_tables(q, pipeline, data, number, settings.workers, rows=settings.rows)
        log.info("worker %d has sent %d batches", number, sent)


def router(settings: Settings) -> None:
    """Filter and route on Spark until stopped."""
    stop = StopSignal()
    pipeline = settings.pipeline()
    preflight.check_spark(settings.master)
    _route(settings, pipeline, _router_spark(settings, pipeline), stop)


def standby(settings: Settings) -> None:
    """Start Spark and warm it up, wait until the run sends GO, then become the router."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    take_over = TakeOverSignal()
    if not take_over.wait(0):
        os.nice(STANDBY_NICENESS)
    pipeline = settings.pipeline()
    spark = _router_spark(settings, pipeline)
    from .router import warm_up

    logging.disable(logging.INFO)  # the synthetic batch must not appear in the router's log
    if not take_over.wait(0):
        warm_up(spark, pipeline, settings.shards, take_over.wait)
    take_over.report_ready()
    while not take_over.wait(STANDBY_POLL):
        spark.catalog.currentDatabase()  # fails if the JVM died; the run then starts another one
    logging.disable(logging.NOTSET)
    _route(settings, pipeline, spark, StopSignal())


def _router_spark(settings: Settings, pipeline: Pipeline) -> "SparkSession":
    return _spark(
        f"ackflow {pipeline.name} router", settings.master,
        **{"spark.sql.session.timeZone": "UTC",
           "spark.sql.ansi.enabled": "true", "spark.ui.enabled": "false",
           # The JVM's optimising compiler costs more than it gains: it compiled for longer than
           # the router took for 100,000 transactions.
           "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
           # Batches are many and small: planning costs more than adaptive execution saves.
           "spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2",
           "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"},
    )  # fmt: skip


def _route(settings: Settings, pipeline: Pipeline, spark: "SparkSession", stop: StopSignal) -> None:
    from .router import Router, dead_letter_bad_rows

    with settings.session("router") as q:
        check_sizes(q, pipeline, settings, "shards")
        checkpoint = Path(settings.out).absolute() / "checkpoint"
        router = Router(
            q, settings.url, pipeline, settings.shards, checkpoint, settings.messages,
            settings.token,
        )  # fmt: skip
        query = router.start(spark)
        reported = False
        while not stop.wait(0.5 if reported else 0.1) and query.isActive:
            if not reported and query.status["message"] != "Initializing sources":
                report_working(q, pipeline, "router")
                reported = True
            dead_letter_bad_rows(q, pipeline)
            router.ends.poll()
        failure = query.exception()
        query.stop()
        dead_letter_bad_rows(q, pipeline)  # of the last batches
    spark.stop()
    if failure is not None:
        raise PipelineFailed(f"Spark failed: {error_summary(failure)}")


def _spark(app: str, master: str, **conf: str) -> "SparkSession":
    from ..spark import session

    try:
        return session(app, master, **conf)
    except AckflowError:
        raise
    except Exception as error:  # Py4J, Java and PySpark have no common base class
        raise PipelineFailed(f"cannot start Spark on {master}: {error_summary(error)}") from error


def aggregator(settings: Settings) -> None:
    """Fold shards until stopped."""
    stop = StopSignal()
    with settings.session(aggregator_name(os.getpid())) as q:
        pipeline = settings.pipeline()
        stage = Aggregator(q, pipeline)
        report_working(q, pipeline, "aggregator")
        _loop(stop, stage.run_once)


def finisher(settings: Settings) -> None:
    """Answer the queries of clients whose tables are complete, until stopped."""
    stop = StopSignal()
    with settings.session("finisher") as q:
        pipeline = settings.pipeline()
        check_sizes(q, pipeline, settings, "shards")
        stage = Finisher(q, pipeline, Path(settings.out), settings.shards)
        report_working(q, pipeline, "finisher")

        def step() -> None:
            for client in stage.run_once():
                log.info("the answers for %s are written", client)

        _loop(stop, step)


def _loop(stop: StopSignal, step: Callable[[], object]) -> None:
    """Repeat a step until stopped; retry after errors, since the broker may be restarting."""
    while not stop:
        try:
            step()
        except (InvalidArgument, PipelineFailed):
            raise  # a retry would fail in the same way
        except AckflowError as error:
            log.warning("%s; retrying", error.message)
            stop.wait(0.5)


STAGES: dict[str, Callable[[Settings], None]] = {
    "router": router,
    "aggregator": aggregator,
    "finisher": finisher,
}
