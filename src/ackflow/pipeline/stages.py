"""The processes of a pipeline: `python -m ackflow.pipeline.stages STAGE [NUMBER]`.

A worker sends its share of the files and ends. `spark` is the Spark application; a standby is one
that waits to take over. Each runs in a process of its own until it is stopped.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from .. import Session, connect
from ..errors import AckflowError, InvalidArgument
from . import preflight
from .declaration import Pipeline, load
from .loader import BLOCK_BYTES, send_tables
from .state import read_state
from .supervisor import (
    ERROR_PREFIX,
    EXIT_NO_RESTART,
    PARENT,
    STANDBY_NICENESS,
    TakeOverSignal,
    report_working,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .check import Checking

STANDBY_POLL = 5.0
log = logging.getLogger("ackflow.pipeline")


class Settings(Struct, frozen=True, kw_only=True):
    """Where a pipeline reads and writes, and how many workers and partitions it has."""

    data: str
    out: str
    declaration: str
    db: str | None = None
    work: str | None = None
    master: str = "local[2]"
    workers: int = 3
    parts: int = 4
    block_bytes: int = BLOCK_BYTES
    messages: int = 1_000
    batch_bytes: int = 128 << 20
    results: Literal["json", "csv", "parquet"] = "json"
    token: str | None = None
    standby: bool | None = None
    ui: bool = False
    conf: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self.db or str(Path(self.out).absolute() / "pipeline.db")

    @property
    def work_folder(self) -> str:
        """The URL of the folder for the partial results and the checkpoint."""
        folder = self.work or str(Path(self.out).absolute() / "work")
        return folder if "://" in folder else f"file://{Path(folder).absolute()}"

    def pipeline(self) -> Pipeline:
        return load(self.declaration)

    def session(self, consumer: str) -> Session:
        return connect(self.url, consumer=consumer, token=self.token)


def check_sizes(q: Session, pipeline: Pipeline, settings: Settings, *names: str) -> None:
    """Raise if sizes differ from those of the first run: the shares of workers depend on them."""
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
        check_sizes(q, pipeline, settings, "workers", "block_bytes")
        report_working(q, pipeline, f"worker-{number}")
        data = Path(settings.data)
        sent = send_tables(q, pipeline, data, number, settings.workers, settings.block_bytes)
        log.info("worker %d has sent %d blocks", number, sent)


def spark(settings: Settings) -> None:
    """Run the Spark application until stopped."""
    stop = StopSignal()
    pipeline = settings.pipeline()
    preflight.check_spark(settings.master)
    session, checking = _start_spark(settings, pipeline)
    _run_application(settings, pipeline, session, checking, stop)


def standby(settings: Settings) -> None:
    """Start Spark and warm it up, wait until the run sends GO, then become the application."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    take_over = TakeOverSignal()
    if not take_over.wait(0):
        os.nice(STANDBY_NICENESS)
    pipeline = settings.pipeline()
    session, checking = _start_spark(settings, pipeline)
    checking.wait()
    from .application import warm_up

    logging.disable(logging.INFO)  # the synthetic rows must not appear in the log
    if not take_over.wait(0):
        warm_up(session, pipeline, checking.layout, settings.parts, take_over.wait)
    take_over.report_ready()
    while not take_over.wait(STANDBY_POLL):
        session.catalog.currentDatabase()  # fails if the JVM died; the run then starts another one
    logging.disable(logging.NOTSET)
    _run_application(settings, pipeline, session, checking, StopSignal())


def _start_spark(settings: Settings, pipeline: Pipeline) -> tuple["SparkSession", "Checking"]:
    from ..spark.spark_session import use_installed_pyspark
    from .application import spark_session
    from .check import Checking

    if preflight.is_local(settings.master):
        use_installed_pyspark(Path(settings.out, "work", "spark-home"))
    session = spark_session(settings, pipeline)
    return session, Checking(session, pipeline)


def _run_application(
    settings: Settings, pipeline: Pipeline, session: "SparkSession", checking: "Checking",
    stop: StopSignal,
) -> None:  # fmt: skip
    from .application import Application

    with settings.session("spark") as q:
        check_sizes(q, pipeline, settings, "parts")
        application = Application(
            session, q, settings.url, pipeline, checking.layout, Path(settings.out),
            settings.work_folder, settings.parts, format=settings.results,
            messages=settings.messages, batch_bytes=settings.batch_bytes, token=settings.token,
            checked=checking.wait,
        )  # fmt: skip
        t = q.transaction()
        t.put(pipeline.state_key("ui"), session.sparkContext.uiWebUrl or "")
        t.commit()
        application.run(stop.wait, lambda: report_working(q, pipeline, "spark"))
    session.stop()


STAGES: dict[str, Callable[[Settings], None]] = {"spark": spark, "standby": standby}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stage, number = sys.argv[1], int(sys.argv[2])
    settings = msgspec.json.decode(os.environ["ACKFLOW_PIPELINE"], type=Settings)
    try:
        if stage == "worker":
            worker(settings, number)
        else:
            STAGES[stage](settings)
    except AckflowError as error:
        print(f"{ERROR_PREFIX}{stage}: {' '.join(error.message.split())}", file=sys.stderr)
        sys.exit(EXIT_NO_RESTART if isinstance(error, InvalidArgument) else 1)


if __name__ == "__main__":
    main()
