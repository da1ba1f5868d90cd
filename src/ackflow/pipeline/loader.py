"""Loaders: read the files of every client and send them as blocks, without parsing a row.

A loader may be killed and restarted at any moment: it sends everything again, and the queue
discards duplicates by their transaction id, which is the place of a block in its file and a digest
of its content. The list of files is fixed when the run begins (`fix_files`), so that a file that
comes later shifts nothing. A file that cannot be read becomes one dead letter; the other files,
tables and clients are not affected.
"""

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .. import Item, Session
from ..errors import InvalidArgument, TransactionFailed
from .declaration import Pipeline, Table
from .state import BadRows, Block, BlockHeaders, EndOfTable, announce_clients, encode, read_state

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20
PUSH_BYTES = 2 << 20
DEDUP_SECONDS = 7 * 86_400
MAX_RECORD = 16 << 20
PARQUET_ROWS = 10_000  # that are converted at a time
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

# A quoted field begins at the start of a field, and a quote within it is doubled.
_QUOTED = re.compile(rb'(?:(?<=[,\r\n])|\A)"[^"]*+(?:""[^"]*+)*+("?)')

log = logging.getLogger("ackflow.pipeline")

Files = dict[str, int]  # name and size, in the order in which they are read
OnUnreadable = Callable[[str, str], None]


def clients(data: Path) -> list[str]:
    """Return the clients of a data folder, which has one sub-folder for each."""
    if not data.is_dir():
        raise InvalidArgument(f"data folder not found: {data}")
    found = sorted(path.name for path in data.iterdir() if path.is_dir())
    if not found:
        raise InvalidArgument(f"data folder {data} has no sub-folder for a client")
    return found


def fix_files(q: Session, pipeline: Pipeline, data: Path) -> dict[str, dict[str, Files]]:
    """Return the files of every client and table, as they were when the run began.

    The first call stores the list. A file or a client that comes later is not part of the run.
    """
    stored = read_state(q, pipeline, "files")
    if not stored:
        t = q.transaction()
        for client in clients(data):
            by_table, _ = table_files(data / client, pipeline.tables)
            sizes = {t: {p.name: _size(p) for p in paths} for t, paths in by_table.items()}
            t.put(pipeline.state_key("files", client), sizes, expect=0)
        try:
            t.commit()
        except TransactionFailed:  # another loader was first
            log.debug("the list of files is already fixed")
        stored = read_state(q, pipeline, "files")
    announce_clients(q, pipeline, stored)
    return stored


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def send_tables(
    q: Session, pipeline: Pipeline, data: Path, worker: int, workers: int,
    block_bytes: int = BLOCK_BYTES,
) -> int:  # fmt: skip
    """Send one worker's share of all tables; return the number of blocks."""
    for queue in (pipeline.inbox, pipeline.bad):
        q.configure(queue, dedup_seconds=DEDUP_SECONDS, keep_seconds=0)
    files = fix_files(q, pipeline, data)
    if worker == 0:
        for warning in file_warnings(data, pipeline, files):
            log.warning("%s", warning)
    sent = 0
    for client, tables in files.items():
        for table in pipeline.tables:
            sender = _Sender(q, pipeline, client, table, worker, workers)
            sent += sender.send(data / client, tables.get(table.name, {}), block_bytes)
    return sent


class _Sender:
    """Sends one worker's share of one table of one client, and its end of file."""

    def __init__(
        self, q: Session, pipeline: Pipeline, client: str, table: Table, worker: int, workers: int
    ) -> None:
        self._q, self._pipeline, self._client, self._table = q, pipeline, client, table
        self._worker, self._workers = worker, workers
        self._waiting: list[Item] = []
        self._size = 0

    def send(self, folder: Path, files: Files, block_bytes: int) -> int:
        number, sent = 0, 0
        counts: dict[str, int] = {}
        for name, size in files.items():
            for block in blocks(folder / name, size, self._table, block_bytes, self._unreadable):
                number += 1
                if number % self._workers == self._worker:
                    sent += 1
                    counts[name] = counts.get(name, 0) + 1
                    self._add(number, block)
        end = EndOfTable(
            self._client, self._table.name, self._worker, self._workers, sent, counts
        )  # fmt: skip
        item = Item(
            data=encode(counts), transaction_id=f"{self._table.name}/end-{self._worker}",
            headers=end.text(),
        )  # fmt: skip
        self._waiting.append(item)
        self._push()
        return sent

    def _add(self, number: int, block: Block) -> None:
        digest = blake2b(block.data, digest_size=12)
        digest.update(block.file.encode())
        headers = BlockHeaders(
            self._client, self._table.name, self._worker, number, block.file, block.place,
            digest.hexdigest(), block.format, json.dumps(block.columns, ensure_ascii=False),
            block.quoted, block.plain,
        )  # fmt: skip
        self._waiting.append(
            Item(data=block.data, transaction_id=headers.id, headers=headers.text())
        )
        self._size += len(block.data)
        if self._size >= PUSH_BYTES:
            self._push()

    def _push(self) -> None:
        self._q.push(self._pipeline.inbox, self._waiting, partition=self._client)
        self._waiting, self._size = [], 0

    def _unreadable(self, file: str, reason: str) -> None:
        # Every worker reads every file and reports it; the queue discards the duplicates.
        bad = BadRows(self._client, self._table.name, f"unreadable file {file}: {reason}")
        item = Item(data=encode(bad), transaction_id=f"{self._table.name}/{file}"[:200])
        self._q.push(self._pipeline.bad, [item], partition=self._client)


def blocks(
    path: Path, size: int, table: Table, block_bytes: int, on_unreadable: OnUnreadable
) -> Iterator[Block]:
    """Yield the blocks of a file, up to the size it had when the run began.

    If a file cannot be read to its end, the blocks before that are used, and `on_unreadable` gets
    its name and the reason.
    """
    format = FORMATS[path.suffix.lower()]
    try:
        if format == "parquet":
            yield from _parquet_blocks(path, table, block_bytes)
            return
        with path.open("rb") as file:
            columns: tuple[str, ...] = ()
            if format == "csv":
                columns = _header(file, table)
            yield from _text_blocks(file, path.name, size, block_bytes, format, columns)
    except OSError as error:
        on_unreadable(path.name, error.strerror or str(error))
    except Unreadable as error:
        on_unreadable(path.name, str(error))


class Unreadable(Exception):
    """The reason why a file cannot be read, or not to its end."""


def _header(file: BinaryIO, table: Table) -> tuple[str, ...]:
    """Read the first line of a CSV file; return the names of the columns."""
    line = file.readline(MAX_RECORD)
    # Excel writes a byte order mark, which is not part of the first column's name.
    text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").rstrip("\r\n")
    if not text:
        raise Unreadable("it has no header")
    names = tuple(next(csv.reader(io.StringIO(text, newline=""))))
    _check_columns(names, table)
    return names


def _check_columns(names: Sequence[str], table: Table) -> None:
    for name in table.kept:
        if name not in names:
            raise Unreadable(f"it has no column {name!r}")


def _text_blocks(
    file: BinaryIO, name: str, size: int, block_bytes: int, format: str, columns: tuple[str, ...]
) -> Iterator[Block]:
    place, data, wanted = file.tell(), b"", block_bytes
    left = size - place
    while left > 0 or data:
        if (n := min(wanted - len(data), left)) > 0:
            more = file.read(n)
            left = left - n if len(more) == n else 0
            data += more
        cut, quoted = _cut(data, left <= 0, format == "csv")
        if cut == 0 and data:
            if left <= 0 or len(data) >= MAX_RECORD:
                raise Unreadable(f"the record at byte {place} has no end")
            wanted = 2 * len(data)
            continue
        if data[:cut].strip(b"\r\n"):
            block = data[:cut]
            plain = format == "csv" and _is_plain(block)
            yield Block(name, place, block, columns, format, quoted, plain)
        place, data, wanted = place + cut, data[cut:], block_bytes


def _is_plain(data: bytes) -> bool:
    """Return whether records end at line breaks, and cells at commas."""
    return b'"' not in data and data.isascii() and not data.endswith(b"\r")


def _cut(data: bytes, at_end: bool, quotes: bool) -> tuple[int, bool]:
    """Return where the last whole record ends, and whether a record has a line break in quotes."""
    if not quotes or b'"' not in data:
        return len(data) if at_end else data.rfind(b"\n") + 1, False
    end = begin = 0
    breaks: list[int] = []
    for found in _QUOTED.finditer(data):
        end = data.rfind(b"\n", begin, found.start()) + 1 or end
        if not found[1]:  # the data end before this field does
            break
        if b"\n" in found[0]:
            breaks.append(found.start())
        begin = found.end()
    else:
        end = len(data) if at_end else data.rfind(b"\n", begin) + 1 or end
    return end, any(place < end for place in breaks)


def _parquet_blocks(path: Path, table: Table, block_bytes: int) -> Iterator[Block]:
    """Yield the rows of a Parquet file as CSV, which Arrow writes without a Python object.

    The place of a block is the one that it has in that CSV.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = 0
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, table)
            for number in range(file.num_row_groups):
                for rows in file.iter_batches(PARQUET_ROWS, [number], table.kept):
                    data, columns = _csv_of(rows, table), tuple(rows.schema.names)
                    for block in _text_blocks(
                        io.BytesIO(data), path.name, len(data), block_bytes, "csv", columns
                    ):
                        yield block._replace(place=place + block.place)
                    place += len(data)
    except pa.ArrowException as error:
        raise Unreadable(str(error)) from error


def _csv_of(rows: "pa.RecordBatch", table: Table) -> bytes:
    import pyarrow as pa
    import pyarrow.csv

    for i, column in enumerate(rows.schema):
        if table.kind(column.name) == "time" and pa.types.is_timestamp(column.type):
            seconds = rows.column(i).cast(pa.timestamp("s"), safe=False)
            rows = rows.set_column(i, column.name, seconds)
    sink = io.BytesIO()
    pyarrow.csv.write_csv(rows, sink, pyarrow.csv.WriteOptions(include_header=False))
    return sink.getvalue()


def table_files(folder: Path, tables: Sequence[Table]) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the files of each table, and the files that belong to no table.

    A file belongs to the table with the longest name that its own name begins with.
    """
    by_table: dict[str, list[Path]] = {table.name: [] for table in tables}
    unused = []
    try:
        found = sorted(folder.iterdir())
    except OSError:
        # The folder of one client that cannot be listed is reported like an unused file.
        return by_table, [folder]
    for path in found:
        if path.suffix.lower() not in FORMATS:
            continue
        names = [name for name in by_table if path.stem.startswith(name)]
        if names:
            by_table[max(names, key=len)].append(path)
        else:
            unused.append(path)
    return by_table, unused


def file_warnings(data: Path, pipeline: Pipeline, files: dict[str, dict[str, Files]]) -> list[str]:
    """Return a warning for each file that is not part of the run, and each table without a file."""
    warnings = []
    for client in clients(data):
        by_table, unused = table_files(data / client, pipeline.tables)
        warnings += [f"{path} belongs to no table and is ignored" for path in unused]
        if client not in files:
            warnings.append(f"{data / client} came after the run began and is not part of it")
            continue
        for table, paths in by_table.items():
            fixed = files[client].get(table, {})
            if not paths and not fixed:
                warnings.append(f"{data / client} has no file for table {table}, which is empty")
            for path in paths:
                if path.name not in fixed:
                    warnings.append(f"{path} came after the run began and is not part of it")
                elif (more := _size(path) - fixed[path.name]) > 0:
                    warnings.append(f"{path} has {more:,} bytes more than when the run began; "
                                    "they are not part of it")  # fmt: skip
                elif more < 0:
                    warnings.append(f"{path} is {-more:,} bytes shorter than when the run began")
    return warnings
