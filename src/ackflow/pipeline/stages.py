"""The stages of a pipeline, each run by a process of its own until it is told to stop."""

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
from . import masters
from .aggregate import Aggregator
from .declaration import Pipeline, load
from .failing import Failed, reason
from .finish import Finisher
from .keeping import kept
from .loader import ROWS, send
from .recovery import PARENT, aggregator_name, works
from .standby import LOWER, Line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "examples" / "coffee_shop.py"
LOOK = 5.0
log = logging.getLogger("ackflow.pipeline")


class Settings(Struct, frozen=True, kw_only=True):
    """Where a pipeline reads and writes, and how wide it is."""

    data: str
    out: str
    db: str | None = None
    declaration: str = str(HERE)
    master: str = "local[2]"
    workers: int = 3
    shards: int = 4
    rows: int = ROWS
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


def keep_width(q: Session, pipeline: Pipeline, settings: Settings, *names: str) -> None:
    """Refuse to go on in another width: batches are numbered and shards counted by it."""
    now = {name: getattr(settings, name) for name in names}
    known = {name: kept(q, pipeline, "width").get(name, n) for name, n in now.items()}
    if known != now:
        used = ", ".join(f"{n} {name}" for name, n in known.items())
        raise InvalidArgument(f"this run began with {used}; go on with these, or begin anew "
                              "with another out folder and database")  # fmt: skip
    t = q.transaction()
    for name, n in now.items():
        t.put(pipeline.value("width", name), n)
    t.commit()


class Stop:
    """Set by SIGTERM and SIGINT, and when the run that started this stage is gone."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._parent = int(os.environ.get(PARENT, 0))
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, lambda *_: self._event.set())

    def __bool__(self) -> bool:
        return self._event.is_set() or self._orphaned()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds) or self._orphaned()

    def _orphaned(self) -> bool:
        return self._parent not in (0, os.getppid())


def upstream(settings: Settings, worker: int) -> None:
    """Send one worker's share and return."""
    if not 0 <= worker < settings.workers:
        raise InvalidArgument(f"worker is from 0 to {settings.workers - 1}, not {worker}")
    with settings.session(f"upstream-{worker}") as q:
        pipeline = settings.pipeline()
        keep_width(q, pipeline, settings, "workers", "rows")
        works(q, pipeline, f"worker-{worker}")
        sent = send(q, pipeline, Path(settings.data), worker, settings.workers, rows=settings.rows)
        log.info("worker %d has sent %d batches", worker, sent)


def router(settings: Settings) -> None:
    """Filter and route on Spark until stopped."""
    stop = Stop()
    pipeline = settings.pipeline()
    masters.ready(settings.master)
    _route(settings, pipeline, _router_spark(settings, pipeline), stop)


def standby(settings: Settings) -> None:
    """Get Spark ready to route, wait, and be the router from the moment that the run says so."""
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: sys.exit(0))
    line = Line()
    if not line.told(0):
        os.nice(LOWER)
    pipeline = settings.pipeline()
    spark = _router_spark(settings, pipeline)
    from .warming import warm_up

    logging.disable(logging.INFO)  # nobody is to take what is made up for what came
    if not line.told(0):
        warm_up(spark, pipeline, settings.shards, line.told)
    line.ready()
    while not line.told(LOOK):
        spark.catalog.currentDatabase()  # fails when the JVM is gone, and the run starts another
    logging.disable(logging.NOTSET)
    _route(settings, pipeline, spark, Stop())


def _router_spark(settings: Settings, pipeline: Pipeline) -> "SparkSession":
    return _spark(
        f"ackflow {pipeline.name} router", settings.master,
        **{"spark.sql.session.timeZone": "UTC",
           "spark.sql.ansi.enabled": "true", "spark.ui.enabled": "false",
           # The second compiler of the JVM costs a router more than it gains: it compiled for
           # longer than 100,000 transactions took.
           "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
           # Batches are small and many: what a plan costs matters more than how well it adapts.
           "spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2",
           "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"},
    )  # fmt: skip


def _route(settings: Settings, pipeline: Pipeline, spark: "SparkSession", stop: Stop) -> None:
    from .router import Router, bury

    with settings.session("router") as q:
        keep_width(q, pipeline, settings, "shards")
        checkpoint = Path(settings.out).absolute() / "checkpoint"
        worker = Router(
            q, settings.url, pipeline, settings.shards, checkpoint, settings.messages,
            settings.token,
        )  # fmt: skip
        query = worker.start(spark)
        told = False
        while not stop.wait(0.5 if told else 0.1) and query.isActive:
            if not told and query.status["message"] != "Initializing sources":
                works(q, pipeline, "router")
                told = True
            bury(q, pipeline)
            worker.ends.tend()
        failure = query.exception()
        query.stop()
        bury(q, pipeline)  # what the last batches left
    spark.stop()
    if failure is not None:
        raise Failed(f"Spark failed: {reason(failure)}")


def _spark(app: str, master: str, **conf: str) -> "SparkSession":
    from ..spark import session

    try:
        return session(app, master, **conf)
    except AckflowError:
        raise
    except Exception as error:  # of Py4J, of Java, of PySpark: there is no common kind
        raise Failed(f"Spark cannot be started on {master}: {reason(error)}") from error


def aggregator(settings: Settings) -> None:
    """Fold shards until stopped."""
    stop = Stop()
    with settings.session(aggregator_name(os.getpid())) as q:
        pipeline = settings.pipeline()
        worker = Aggregator(q, pipeline)
        works(q, pipeline, "aggregator")
        _loop(stop, lambda: worker.run_once())


def finisher(settings: Settings) -> None:
    """Answer the questions of clients whose tables are complete, until stopped."""
    stop = Stop()
    with settings.session("finisher") as q:
        pipeline = settings.pipeline()
        keep_width(q, pipeline, settings, "shards")
        worker = Finisher(q, pipeline, Path(settings.out), settings.shards)
        works(q, pipeline, "finisher")

        def step() -> None:
            for client in worker.run_once():
                log.info("the answers of %s are written", client)

        _loop(stop, step)


def _loop(stop: Stop, step: Callable[[], object]) -> None:
    """Go on whatever the broker says: it may be restarting."""
    while not stop:
        try:
            step()
        except (InvalidArgument, Failed):
            raise  # the same would come of another try
        except AckflowError as error:
            log.warning("%s; trying again", error.message)
            stop.wait(0.5)


STAGES: dict[str, Callable[[Settings], None]] = {
    "router": router,
    "aggregator": aggregator,
    "finisher": finisher,
}
