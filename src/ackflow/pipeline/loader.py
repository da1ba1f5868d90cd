"""Upstream workers: read the tables of every client and send them in numbered batches.

A worker may be killed and started again at any moment: it sends everything anew, and what the
queue knows by its transaction id adds nothing. A file that cannot be read is told as bad, once, and
is no reason to keep the other files, tables and clients waiting.
"""

import csv
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from .. import Item, Session
from ..errors import InvalidArgument
from .cancel import announce
from .declaration import Pipeline, Table
from .messages import Bad, Batch, EndOfTable

ROWS = 2_000
AT_ONCE = 16
DEDUP = 7 * 86_400

log = logging.getLogger("ackflow.pipeline")

Unread = Callable[[Path, str], None]


def clients(data: Path) -> list[str]:
    """The clients of a folder, one sub-folder each."""
    if not data.is_dir():
        raise InvalidArgument(f"{data} is no folder with a folder for each client")
    found = sorted(path.name for path in data.iterdir() if path.is_dir())
    if not found:
        raise InvalidArgument(f"{data} has no folder of a client")
    return found


def send(
    q: Session, pipeline: Pipeline, data: Path, worker: int, workers: int, *, rows: int = ROWS
) -> int:
    """Send this worker's share of everything; answers with the number of batches."""
    for queue in (pipeline.inbox, pipeline.bad):
        q.configure(queue, dedup_seconds=DEDUP, keep_seconds=0)
    sent = 0
    if worker == 0:
        for told in left_out(data, pipeline):
            log.warning("%s", told)
    found = clients(data)
    announce(q, pipeline, found)
    for client in found:
        taken, _ = files(data / client, pipeline.tables)
        for table in pipeline.tables:
            paths = taken[table.name]
            sent += _send_table(q, pipeline, paths, client, table, (worker, workers), rows)
    return sent


def _send_table(
    q: Session, pipeline: Pipeline, paths: list[Path], client: str, table: Table,
    share: tuple[int, int], most: int,
) -> int:  # fmt: skip
    mine, some = 0, []
    worker, workers = share

    def unread(path: Path, why: str) -> None:
        # Every worker reads every file and says the same; the queue keeps the first of them.
        bad = Bad(client, table.name, f"unreadable file {path.name}: {why}", [])
        said = _item(bad, f"{client}/{table.name}/{path.name}")
        q.push(pipeline.bad, [said], partition=client)

    for number, rows in enumerate(batches(paths, table, most, unread), 1):
        if number % workers != worker:
            continue
        mine += 1
        message = Batch(client, table.name, worker, number, rows)
        some.append(_item(message, f"{client}/{table.name}/{number}"))
        if len(some) == AT_ONCE:
            q.push(pipeline.inbox, some, partition=client)
            some = []
    end = EndOfTable(client, table.name, worker, workers, mine)
    some.append(_item(end, f"{client}/{table.name}/end-{worker}"))
    q.push(pipeline.inbox, some, partition=client)
    return mine


def _item(message: object, transaction_id: str) -> Item:
    return Item(data=msgspec.Raw(msgspec.json.encode(message)), transaction_id=transaction_id)


def batches(
    paths: list[Path], table: Table, most: int, unread: Unread
) -> Iterator[list[list[str]]]:  # fmt: skip
    """The rows of a table over all its files, cut to the columns that are kept.

    A row that has not as many cells as the table has columns is sent as it is; the router says so.
    Of a file that cannot be read to its end, what was read before counts; `unread` is told why.
    """
    rows: list[list[str]] = []
    for path in paths:
        try:
            for row in _rows(path, table):
                rows.append(row)
                if len(rows) == most:
                    yield rows
                    rows = []
        except _Unreadable as error:
            unread(path, str(error))
    if rows:
        yield rows


def files(folder: Path, tables: Sequence[Table]) -> tuple[dict[str, list[Path]], list[Path]]:
    """The CSV files of each table, and those that no table takes.

    A file belongs to the table whose name it begins with; to the longest of these if several.
    """
    taken: dict[str, list[Path]] = {table.name: [] for table in tables}
    left = []
    try:
        found = sorted(folder.iterdir())
    except OSError:
        # One client's folder that cannot be listed is told like a file that nobody takes.
        return taken, [folder]
    for path in found:
        if path.suffix.lower() != ".csv":
            continue
        names = [name for name in taken if path.stem.startswith(name)]
        if names:
            taken[max(names, key=len)].append(path)
        else:
            left.append(path)
    return taken, left


def left_out(data: Path, pipeline: Pipeline) -> list[str]:
    """A sentence for every CSV file that no table takes, and every table without a file."""
    told = []
    for client in clients(data):
        taken, left = files(data / client, pipeline.tables)
        told += [f"{path} belongs to no table and is left out" for path in left]
        empty = [table for table, paths in taken.items() if not paths]
        told += [
            f"{data / client} has no file of the table {table}; it is empty" for table in empty
        ]
    return told


class _Unreadable(Exception):
    """Why a file cannot be read, or not any further."""


def _rows(path: Path, table: Table) -> Iterator[list[str]]:
    try:
        # Excel begins a file with a byte order mark, which is no part of the first column's name.
        file = path.open(newline="", encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from error
    with file:
        lines = _lines(file)
        head = next(lines, None)
        if head is None:
            raise _Unreadable("it has no header")
        for name in table.keep:
            if name not in head:
                raise _Unreadable(f"it has no column {name!r}")
        at = [head.index(name) for name in table.keep]
        for row in lines:
            if len(row) == len(head):
                yield [row[i] for i in at]
            elif row:
                yield [*row[: len(table.keep)], "…"] if len(row) >= len(table.keep) else row


def _lines(file: TextIO) -> Iterator[list[str]]:
    """The lines of a file; only what goes wrong in reading is the file's fault."""
    reader = csv.reader(file)
    while True:
        try:
            row = next(reader, None)
        except (csv.Error, OSError) as error:
            raise _Unreadable(f"{error} in line {reader.line_num}") from error
        if row is None:
            return
        yield row
