"""For `foreachBatch`: settle messages by a DataFrame of verdicts, alone or together with an output.

Each task folds its rows into range sets, so that the driver collects one row per task.
"""

import base64
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, msgpack
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .. import ids, ranges
from ..broker.readers import commit as batches
from ..broker.readers.commit import BatchDone
from ..broker.requests import SETTLE_VERBS, BatchCommit, Hold, Mark, SettleOperation, Verdict
from ..errors import InvalidArgument
from ..ids import LaneId
from ..ranges import Ranges
from ..session.transaction import Committed, Operations
from . import sessions
from .encode import check_columns
from .options import SinkOptions, sink_options
from .sink import stage_all

VERDICTS = (*SETTLE_VERBS, "hold")
_NEEDED = ("id", "lease", "verdict")
_OPTIONAL = ("reason", "delay")

Transform = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class VerdictRanges(Struct, array_like=True):
    """Messages of one lane and lease with the same verdict."""

    token: int
    lane: LaneId
    verdict: str
    reason: str | None
    delay: float | None
    ranges: Ranges


_decode_verdicts = msgpack.Decoder(list[VerdictRanges]).decode


def settle(verdicts: DataFrame | pa.Table, url: str, *, token: str | None = None) -> int:
    """Settle messages by rows of (id, lease, verdict) with optional reason and delay.

    A verdict is ack, nack, release, requeue, reject, dead_letter or hold. Rows are settled
    independently, and repeating a verdict succeeds. Returns the number of rows refused because
    their lease was lost. An Arrow table of verdicts on the driver is settled without a Spark job.
    """
    settles, holds = _marks(_collected(verdicts))
    session = sessions.session(_sink_to(url, None, token))
    return session.broker.do(batches.judge, True, settles, holds)


def commit_batch(
    batch_id: int,
    url: str,
    *,
    output: DataFrame | Mapping[str, DataFrame] | None = None,
    verdicts: DataFrame | pa.Table | None = None,
    shape: Transform | None = None,
    queue: str | None = None,
    token: str | None = None,
    also: Operations | None = None,
) -> BatchDone:
    """Publish an output and settle its input in one transaction, once per batch.

    `output` has the columns of the sink, or those that `shape` creates: a function that each task
    applies to its record batches. Several outputs are given by queue. `verdicts`: as in `settle`;
    in mode commit, messages of the batch without a verdict are acked. `also`: operations for the
    same transaction. A batch that was committed by an earlier run changes nothing; a second call
    for a batch is refused, because its output would not be part of the commit.
    """
    query, run = _running()
    options = _sink_to(url, queue, token)
    place = options.url, query
    if _committed.get(place) == (run, batch_id):
        raise InvalidArgument(
            f"commit_batch was called before for batch {batch_id}, and a batch has one commit; give "
            "several outputs to one call, as output={'queue': frame, ...}"
        )
    outputs = output if isinstance(output, Mapping) else {queue: output}
    stages = [
        name
        for target, frame in outputs.items()
        if frame is not None
        for name in _staged(frame, _sink_to(url, target, token), query, batch_id, shape)
    ]
    settles, holds = ([], []) if verdicts is None else _marks(_collected(verdicts))
    more = [] if also is None else also.request().operations
    request = BatchCommit(query, batch_id, stages, query, run, settles, holds, more)
    done = sessions.session(options).broker.do(batches.commit_batch, True, request)
    _committed[place] = run, batch_id
    if also is not None:
        also.committed = Committed([], [])
    return done


def publisher(
    url: str, *, queue: str | None = None, token: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that publishes each batch as the sink does.

    The sink itself cannot be written in output mode update; `foreachBatch` can.
    """

    def publish(batch: DataFrame, batch_id: int) -> None:
        commit_batch(batch_id, url, output=batch, queue=queue, token=token)

    return publish


# The last batch that this process committed, by database and query.
_committed: dict[tuple[str, str], tuple[str, int]] = {}


def _running() -> tuple[str, str]:
    """Return the query and the run that call this from `foreachBatch`."""
    spark = SparkSession.getActiveSession()
    if spark is not None and not isinstance(spark, SparkSession):
        raise InvalidArgument(
            "commit_batch needs a classic Spark session: over Spark Connect a batch does not know "
            "its query; write the output with the sink"
        )
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") if spark else None
    run = spark.sparkContext.getLocalProperty("spark.jobGroup.id") if spark else None
    if query is None:
        raise InvalidArgument("commit_batch can be called only within foreachBatch")
    return query, run or ""


def _sink_to(url: str, queue: str | None, token: str | None) -> SinkOptions:
    given = {"url": url, **({"queue": queue} if queue else {})}
    return sink_options({**given, **({"token": token} if token else {})})


def _staged(
    output: DataFrame, options: SinkOptions, producer: str, batch: int, shape: Transform | None
) -> list[str]:
    """Stage an output on the executors; return the stages of successful task attempts."""
    if shape is None:
        check_columns(output.columns, options)
    job = StageJob(options, producer, batch, cloudpickle.dumps(shape) if shape else b"")  # type: ignore[no-untyped-call]
    return [name for result in _run(output, job) for name in msgpack.decode(result, type=list[str])]


def _collected(verdicts: DataFrame | pa.Table) -> list[VerdictRanges]:
    columns = verdicts.column_names if isinstance(verdicts, pa.Table) else verdicts.columns
    for name in _NEEDED:
        if name not in columns:
            raise InvalidArgument(
                f"verdicts need the column {name!r}; required: {', '.join(_NEEDED)}, "
                f"optional: {', '.join(_OPTIONAL)}"
            )
    wanted = [*_NEEDED, *(name for name in _OPTIONAL if name in columns)]
    if isinstance(verdicts, pa.Table):
        return fold(verdicts.select(wanted).to_batches())
    return [
        fold
        for result in _run(verdicts.select(*wanted), FoldJob())
        for fold in _decode_verdicts(result)
    ]


class StageJob(Struct, tag=True):
    options: SinkOptions
    producer: str
    batch: int
    shape: bytes = b""


class FoldJob(Struct, tag=True):
    pass


_jobs = msgpack.Decoder(StageJob | FoldJob).decode
_results = msgpack.Decoder(list[bytes]).decode


def _run(frame: DataFrame, job: StageJob | FoldJob) -> list[bytes]:
    """Run a job on the rows of a frame; return the result of each task.

    A write is the only way to run Python on Arrow data that needs no pandas and counts each task
    once. The result comes back through a file, because the commit runs in another process.
    """
    spark = frame.sparkSession
    spark.dataSource.register(JobDataSource)
    with tempfile.TemporaryDirectory(prefix="ackflow-") as folder:
        answer = Path(folder, "answer")
        writer = frame.write.format(JobDataSource.name()).mode("append")
        writer = writer.option("job", base64.b64encode(msgpack.encode(job)).decode())
        writer.option("answer", str(answer)).save()
        return _results(answer.read_bytes())


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of one task."""

    data: bytes


class JobDataSource(DataSource):
    """The target of writes that run a job on a frame."""

    @classmethod
    def name(cls) -> str:
        return "ackflow-job"

    def writer(self, schema: StructType, overwrite: bool) -> "JobWriter":
        job = _jobs(base64.b64decode(self.options["job"]))
        return JobWriter(job, self.options["answer"])


class JobWriter(DataSourceArrowWriter):
    def __init__(self, job: StageJob | FoldJob, answer: str) -> None:
        self._job, self._answer = job, answer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        job = self._job
        if isinstance(job, FoldJob):
            return TaskResult(msgpack.encode(fold(iterator)))
        if job.shape:
            iterator = _transformed(cloudpickle.loads(job.shape), iterator, job.options)
        return TaskResult(msgpack.encode(stage_all(job.options, job.producer, job.batch, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        result = [message.data for message in messages if isinstance(message, TaskResult)]
        Path(self._answer).write_bytes(msgpack.encode(result))


def _transformed(
    shape: Transform, rows: Iterator[pa.RecordBatch], options: SinkOptions
) -> Iterator[pa.RecordBatch]:
    for batch in shape(rows):
        check_columns(batch.schema.names, options)
        yield batch


def fold(rows: Iterable[pa.RecordBatch]) -> list[VerdictRanges]:
    """Merge rows with equal lane, lease and verdict into one range set each."""
    sequences: dict[tuple[str, str, str, str | None, float | None], list[int]] = {}
    for batch in rows:
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        heads = pc.utf8_slice_codeunits(columns["id"], 0, 24).to_pylist()
        tails = pc.utf8_slice_codeunits(columns["id"], 24).to_pylist()
        n = batch.num_rows
        reasons = columns["reason"].to_pylist() if "reason" in columns else [None] * n
        delays = columns["delay"].to_pylist() if "delay" in columns else [None] * n
        keys = zip(
            heads, columns["lease"].to_pylist(), columns["verdict"].to_pylist(), reasons, delays,
            strict=True,
        )  # fmt: skip
        for key, tail in zip(keys, tails, strict=True):
            sequences.setdefault(key, []).append(int(tail, 16))
    return [
        VerdictRanges(ids.parse_token(lease), ids.parse_message_id(head + "0" * 12).lane, _known(verdict),
             reason, delay, ranges.of(some))
        for (head, lease, verdict, reason, delay), some in sequences.items()
    ]  # fmt: skip


def _known(verdict: str) -> str:
    word = str(verdict).lower()
    if word not in VERDICTS:
        raise InvalidArgument(f"verdict must be one of {', '.join(VERDICTS)}, got {verdict!r}")
    return word


def _marks(folds: list[VerdictRanges]) -> tuple[list[SettleOperation], list[Hold]]:
    settles: dict[int, list[Mark]] = {}
    holds: list[Hold] = []
    for f in folds:
        if f.verdict == "hold":
            holds.append(Hold(f.token, f.lane, f.ranges))
        else:
            verdict = Verdict(f.verdict, f.reason, f.delay).check()  # type: ignore[arg-type]
            settles.setdefault(f.token, []).append(Mark(verdict, f.lane, f.ranges))
    return [SettleOperation(token, marks) for token, marks in settles.items()], holds
