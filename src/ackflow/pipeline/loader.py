"""Upstream workers: read the tables of every client and send them in numbered batches.

A worker may be killed and restarted at any moment: it sends everything again, and the queue
discards duplicates by their transaction id. A file that cannot be read becomes one dead letter; the
other files, tables and clients are not affected.
"""

import csv
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from .. import Item, Session
from ..errors import InvalidArgument
from .cancel import announce_clients
from .declaration import Pipeline, Table
from .messages import BadRows, Batch, EndOfTable, encode

BATCH_ROWS = 2_000
PUSH_BATCHES = 16
DEDUP_SECONDS = 7 * 86_400

log = logging.getLogger("ackflow.pipeline")

OnUnreadable = Callable[[Path, str], None]


def clients(data: Path) -> list[str]:
    """Return the clients of a data folder, which has one sub-folder for each."""
    if not data.is_dir():
        raise InvalidArgument(f"data folder not found: {data}")
    found = sorted(path.name for path in data.iterdir() if path.is_dir())
    if not found:
        raise InvalidArgument(f"data folder {data} has no sub-folder for a client")
    return found


def send_tables(
    q: Session, pipeline: Pipeline, data: Path, worker: int, workers: int, *, rows: int = BATCH_ROWS
) -> int:
    """Send one worker's share of all tables; return the number of batches."""
    for queue in (pipeline.inbox, pipeline.bad):
        q.configure(queue, dedup_seconds=DEDUP_SECONDS, keep_seconds=0)
    sent = 0
    if worker == 0:
        for warning in file_warnings(data, pipeline):
            log.warning("%s", warning)
    found = clients(data)
    announce_clients(q, pipeline, found)
    for client in found:
        by_table, _ = table_files(data / client, pipeline.tables)
        for table in pipeline.tables:
            paths = by_table[table.name]
            sent += _send_table(q, pipeline, paths, client, table, (worker, workers), rows)
    return sent


def _send_table(
    q: Session, pipeline: Pipeline, paths: list[Path], client: str, table: Table,
    share: tuple[int, int], batch_rows: int,
) -> int:  # fmt: skip
    sent, pending = 0, []
    worker, workers = share

    def on_unreadable(path: Path, reason: str) -> None:
        # Every worker reads every file and reports it; the queue discards the duplicates.
        bad = BadRows(client, table.name, f"unreadable file {path.name}: {reason}", [])
        item = _item(bad, f"{client}/{table.name}/{path.name}")
        q.push(pipeline.bad, [item], partition=client)

    for number, rows in enumerate(batches(paths, table, batch_rows, on_unreadable), 1):
        if number % workers != worker:
            continue
        sent += 1
        message = Batch(client, table.name, worker, number, rows)
        pending.append(_item(message, f"{client}/{table.name}/{number}"))
        if len(pending) == PUSH_BATCHES:
            q.push(pipeline.inbox, pending, partition=client)
            pending = []
    end = EndOfTable(client, table.name, worker, workers, sent)
    pending.append(_item(end, f"{client}/{table.name}/end-{worker}"))
    q.push(pipeline.inbox, pending, partition=client)
    return sent


def _item(message: Struct, transaction_id: str) -> Item:
    return Item(data=encode(message), transaction_id=transaction_id)


def batches(
    paths: list[Path], table: Table, batch_rows: int, on_unreadable: OnUnreadable
) -> Iterator[list[list[str]]]:
    """Yield the rows of a table over all its files, reduced to the columns that are kept.

    A row with the wrong number of cells is sent as it is; the router rejects it. If a file cannot
    be read to its end, the rows before that are used, and `on_unreadable` gets the reason.
    """
    rows: list[list[str]] = []
    for path in paths:
        try:
            for row in _rows(path, table):
                rows.append(row)
                if len(rows) == batch_rows:
                    yield rows
                    rows = []
        except _Unreadable as error:
            on_unreadable(path, str(error))
    if rows:
        yield rows


def table_files(folder: Path, tables: Sequence[Table]) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the CSV files of each table, and the files that belong to no table.

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
        if path.suffix.lower() != ".csv":
            continue
        names = [name for name in by_table if path.stem.startswith(name)]
        if names:
            by_table[max(names, key=len)].append(path)
        else:
            unused.append(path)
    return by_table, unused


def file_warnings(data: Path, pipeline: Pipeline) -> list[str]:
    """Return a warning for each CSV file without a table and each table without a file."""
    warnings = []
    for client in clients(data):
        by_table, unused = table_files(data / client, pipeline.tables)
        warnings += [f"{path} belongs to no table and is ignored" for path in unused]
        warnings += [
            f"{data / client} has no file for table {table}, which is empty"
            for table, paths in by_table.items()
            if not paths
        ]
    return warnings


class _Unreadable(Exception):
    """The reason why a file cannot be read, or not to its end."""


def _rows(path: Path, table: Table) -> Iterator[list[str]]:
    try:
        # Excel writes a byte order mark, which is not part of the first column's name.
        file = path.open(newline="", encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from error
    with file:
        records = _records(file)
        header = next(records, None)
        if header is None:
            raise _Unreadable("it has no header")
        for name in table.keep:
            if name not in header:
                raise _Unreadable(f"it has no column {name!r}")
        kept = [header.index(name) for name in table.keep]
        for row in records:
            if len(row) == len(header):
                yield [row[i] for i in kept]
            elif row:
                yield [*row[: len(table.keep)], "…"] if len(row) >= len(table.keep) else row


def _records(file: TextIO) -> Iterator[list[str]]:
    """Yield the records of a CSV file; only errors of the file itself become `_Unreadable`."""
    reader = csv.reader(file)
    while True:
        try:
            row = next(reader, None)
        except (csv.Error, OSError) as error:
            raise _Unreadable(f"{error} in line {reader.line_num}") from error
        if row is None:
            return
        yield row
