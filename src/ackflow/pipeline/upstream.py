"""Upstream workers: read the tables of every client and send them in numbered batches.

A worker may be killed and started again at any moment: it sends everything anew, and what the
queue knows by its transaction id adds nothing.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .. import Item, Session
from ..errors import InvalidArgument
from .declare import Pipeline, Table
from .words import Batch, EndOfTable

ROWS = 2_000
AT_ONCE = 16


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
    q.configure(pipeline.inbox, dedup_seconds=7 * 86_400, keep_seconds=0)
    sent = 0
    for client in clients(data):
        for table in pipeline.tables:
            sent += _send_table(q, pipeline, data, client, table, (worker, workers), rows)
    return sent


def _send_table(
    q: Session, pipeline: Pipeline, data: Path, client: str, table: Table,
    share: tuple[int, int], most: int,
) -> int:  # fmt: skip
    mine, some = 0, []
    worker, workers = share
    for number, rows in enumerate(batches(data / client, table, most), 1):
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


def batches(folder: Path, table: Table, most: int = ROWS) -> Iterator[list[list[str]]]:
    """The rows of a table over all its files, cut to the columns that are kept.

    A row that has not as many cells as the table has columns is sent as it is; the router says so.
    """
    rows: list[list[str]] = []
    for path in files(folder, table.name):
        for row in _rows(path, table):
            rows.append(row)
            if len(rows) == most:
                yield rows
                rows = []
    if rows:
        yield rows


def files(folder: Path, table: str) -> list[Path]:
    """The files of a table: its name, and anything after it that is no other table's name."""
    found = []
    for path in sorted(folder.glob(f"{table}*.csv")):
        rest = path.stem[len(table) :]
        if not rest or not rest[1:].split("_")[0].isalpha():
            found.append(path)
    return found


def _rows(path: Path, table: Table) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.reader(file)
        head = next(reader, None)
        if head is None:
            return
        at = [head.index(name) if name in head else -1 for name in table.keep]
        if -1 in at:
            missing = table.keep[at.index(-1)]
            raise InvalidArgument(f"{path} has no column {missing!r}")
        for row in reader:
            if len(row) == len(head):
                yield [row[i] for i in at]
            elif row:
                yield [*row[: len(table.keep)], "…"] if len(row) >= len(table.keep) else row
