"""The queries of a client, as Spark SQL over the folded routes, once its tables are complete.

    ends of every table from every partition ──► fold, query ──► files in OUT ──► one commit:
                                                                 acks, done, partial results deleted

The ends of a client stay unacknowledged until its answers are on disk. An application killed before
the commit writes the same bytes again. A query that fails for what is in the rows of a client ends
that client with the reason; the others continue.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
)

from .. import Message, Session
from ..errors import AckflowError, InvalidArgument, LeaseLost, TransactionFailed
from .declaration import Pipeline
from .partials import Folder, Partials, WorkFolder
from .sql import literal, quoted
from .state import EndForwarded, cancelled_clients, delete_client
from .supervisor import error_summary

GROUP = "answer"
LEASE = 10.0
PARALLEL = 4
CSV = "map('escape', '\"', 'emptyValue', '')"
# SQL states of errors in the data: data exceptions, and what a query raised itself.
DATA_ERRORS = ("22", "P0")

ResultFormat = Literal["json", "csv", "parquet"]

log = logging.getLogger("ackflow.pipeline")
_decode_end = msgspec.json.Decoder(EndForwarded).decode


class Answers:
    """Consumes the ends of tables, and answers the queries of clients whose tables are complete."""

    def __init__(
        self, q: Session, pipeline: Pipeline, partials: Partials, questions: "Questions",
        out: Path, parts: int, before_done: Callable[[], None],
    ) -> None:  # fmt: skip
        """`before_done` does what a finished client must not wait for any more."""
        self._q, self._pipeline, self._partials = q, pipeline, partials
        self._questions, self._out, self._parts = questions, out, parts
        self._before_done = before_done
        self._ends: dict[str, dict[tuple[str, str], tuple[Message, EndForwarded]]] = {}
        q.configure(pipeline.ends, keep_seconds=0)
        q.group(pipeline.ends, GROUP, ordering="shared", lease_seconds=LEASE, max_deliver=None)

    def run_once(self, wait: float = 0) -> list[str]:
        """Receive ends of tables; return the clients that are finished now."""
        self._renew_leases()
        for message in self._q.pop(self._pipeline.ends, group=GROUP, batch=100, wait=wait):
            end = _decode_end(message.raw)
            known = self._ends.setdefault(end.client, {})
            known[end.table, message.partition] = message, end
        for client in cancelled_clients(self._q, self._pipeline):
            self._drop(client)
        expected = len(self._pipeline.tables) * self._parts
        complete = [client for client, ends in self._ends.items() if len(ends) == expected]
        return [client for client in complete if self._finish(client)]

    def _renew_leases(self) -> None:
        """Extend the leases of held ends; forget those that were lost, which are redelivered."""
        for client, ends in list(self._ends.items()):
            try:
                _extend(self._q, [message for message, _ in ends.values()])
            except LeaseLost:
                log.warning("lease lost: the ends of %s are redelivered", client)
                del self._ends[client]

    def _finish(self, client: str) -> bool:
        held = [message for message, _ in self._ends[client].values()]
        done: bool | str = True
        with _leases_renewed(self._q, held), self._partials.lock:
            version, folders = self._partials.versioned(client)
            try:
                self._questions.answer(folders, self._out / client)
            except InvalidArgument as error:
                log.error("%s: %s", client, error.message)
                done = error.message
        self._before_done()
        t = self._q.transaction()
        t.ack(held)
        t.put(self._pipeline.state_key("done", client), done)
        if folders:
            t.delete(self._partials.key(client), expect=version)
        del self._ends[client]
        try:
            t.commit()
        except TransactionFailed:
            log.warning("lease lost: the ends of %s are redelivered", client)
            return False
        self._partials.delete(folders)
        return True

    def _drop(self, client: str) -> None:
        """Acknowledge the ends and delete the state of a cancelled client."""
        for message, _ in self._ends.pop(client, {}).values():
            message.ack()
        with self._partials.lock:
            folders = self._partials.folders(client)
            delete_client(self._q, self._pipeline, client)
            self._partials.delete(folders)


def _extend(q: Session, messages: list[Message]) -> None:
    for token in {message.token for message in messages}:
        if token is not None:
            q.lease(token).extend(LEASE)


@contextlib.contextmanager
def _leases_renewed(q: Session, messages: list[Message]) -> Iterator[None]:
    """Renew leases during work of any length; a lost lease makes the commit fail."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(LEASE / 4):
            with contextlib.suppress(AckflowError):
                _extend(q, messages)

    thread = threading.Thread(target=renew, name="ackflow-answer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Questions:
    """Runs the queries of a pipeline over partial results, and writes their answers."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, partials: Partials, work: WorkFolder,
        format: ResultFormat = "json",
    ) -> None:  # fmt: skip
        self._spark = spark.newSession()
        self._pipeline, self._partials, self._work = pipeline, partials, work
        self._format = format

    def answer(self, folders: list[Folder], out: Path) -> None:
        """Write the answer of every query to OUT; the files of a failed one are not written."""
        out.mkdir(parents=True, exist_ok=True)
        self._partials.create_views(self._spark, folders)
        with ThreadPoolExecutor(PARALLEL) as pool:
            # The small jobs of one query leave cores idle.
            jobs = [pool.submit(self._ask, query.name, query.sql, out)
                    for query in self._pipeline.queries]  # fmt: skip
            written = [job.result() for job in jobs]
        for temporary, path in written:
            temporary.replace(path)
        _sync(out)

    def _ask(self, name: str, sql: str, out: Path) -> tuple[Path, Path]:
        path = out / f"{name}_results.{self._format}"
        temporary = path.with_name(f".{path.name}.part")
        try:
            found = self._spark.sql(sql)
            if self._format == "parquet":
                self._write_parquet(found, temporary)
            else:
                self._write_text(found, temporary)
        except PySparkException as error:
            if not (error.getSqlState() or "").startswith(DATA_ERRORS):
                raise
            raise InvalidArgument(f"query {name!r} failed: {error_summary(error)}") from error
        return temporary, path

    def _write_text(self, found: DataFrame, path: Path) -> None:
        """Executors write the text of each record; their files are joined without being read."""
        begin, separator, end, text = b"[", ",", b"\n]\n", json_record(found)
        if self._format == "csv":
            names = [f"{literal(name)} as c{i}" for i, name in enumerate(found.columns)]
            header = self._spark.range(1).selectExpr(f"to_csv(struct({', '.join(names)}), {CSV})")
            begin, separator, end = f"{header.collect()[0][0]}\n".encode(), "\n", b""
            text = f"to_csv(struct(*), {CSV})"
        name = f"answer-{self._work.new_name()}"
        try:
            rows = found.selectExpr(f"{text} as value").write
            rows.option("lineSep", separator).text(self._work.path(name))
            with path.open("wb") as file:
                file.write(begin)
                for piece in self._work.contents(name):
                    file.write(piece)
                if self._format == "json" and file.tell() > len(begin):
                    file.seek(-len(separator), os.SEEK_END)
                    file.truncate()
                elif self._format == "json":
                    end = b"]\n"
                file.write(end)
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._work.delete(name)

    def _write_parquet(self, found: DataFrame, path: Path) -> None:
        name = f"answer-{self._work.new_name()}"
        try:
            found.coalesce(1).write.parquet(self._work.path(name))
            with path.open("wb") as file:
                for piece in self._work.contents(name):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._work.delete(name)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def json_record(found: DataFrame) -> str:
    """Return Spark SQL for the JSON object of a row, indented; a null is omitted."""
    fields = []
    for field in found.schema.fields:
        key = msgspec.json.encode(field.name).decode()
        value = json_value(quoted(field.name), field.dataType)
        fields.append(f"{literal(f'  {key}: ')} || {value}")
    inner = f"concat_ws(',\\n', {', '.join(fields)})"
    return f"'\\n {{' || if({inner} = '', '', '\\n' || {inner} || '\\n ') || '}}'"


def json_value(column: str, kind: DataType) -> str:
    """Return Spark SQL for a value as JSON. A decimal has at least one digit after the point."""
    if isinstance(kind, IntegralType | BooleanType):
        return f"cast({column} as string)"
    if isinstance(kind, DecimalType):
        if kind.scale == 0:
            return f"cast({column} as string)"
        return f"regexp_replace(cast({column} as string), '([.][0-9]+?)0+$', '$1')"
    text = f"to_json(array({column}))"
    return f"if({column} is null, null, substr({text}, 2, length({text}) - 2))"


def finished_files(out: Path, pipeline: Pipeline, client: str, format: str) -> list[Path]:
    """Return where the answers of a client are."""
    return [out / client / f"{query.name}_results.{format}" for query in pipeline.queries]
