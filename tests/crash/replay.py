"""Possible contents of a disk after a power cut, replayed from a trace of real processes (trace.c).

The model is ext4 in its default mode, data=ordered, on a disk with atomic 512-byte sector writes:

- A write is durable when a sync of its file has ended that started after the write had returned, in
  any process. Until then each 4096-byte page of the file has, independently of other pages, its
  content after any of the writes since its last sync, or is torn: so has each sector separately.
- Create, delete, rename and truncate are entries in the journal. The journal is written in order,
  so a power cut leaves a prefix of it. fsync and fdatasync of a file commit its own entries and all
  entries before them; fsync of the folder commits all entries; fdatasync of the folder commits
  none, since ext4 does not need a new name to read the data.
- A write beyond a truncation needs new blocks: it is lost if the truncation is lost.
- A write that is in progress at the power cut may or may not have been done.

Not replayed: files that are shared memory (-shm of SQLite, -sync), as they are not used after a
reboot, and the reserve (-reserve), whose content is never read.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

OPEN, WRITE, TRUNCATE, SYNC, DATASYNC, UNLINK, RENAME, NOTE, LINK = range(1, 10)
SECTOR, PAGE = 512, 4096
RESERVE = 8 * 1024 * 1024
IGNORED = ("-shm", "-sync", "-reserve")
_HEADER = struct.Struct("<QQQqII")


@dataclass(slots=True)
class Record:
    """One operation, with its start and end in the order that all processes share."""

    start: int
    end: int
    handle: int
    offset: int
    kind: int
    data: bytes

    @property
    def note(self) -> list[Any]:
        found: list[Any] = json.loads(self.data)
        return found


class Trace:
    """The operations of all processes in a folder, in the order in which they ended."""

    def __init__(self, records: Iterable[Record], folder: Path) -> None:
        self.folder = folder
        self.records = sorted(records, key=lambda record: record.end)
        self.last = self.records[-1].end

    def of_kind(self, kind: int) -> list[Record]:
        return [record for record in self.records if record.kind == kind]

    def moments(self, count: int, chance: Random) -> list[int]:
        """Return moments of power cuts: half at random, half next to a rare operation."""
        kinds = (OPEN, DATASYNC, UNLINK, NOTE)
        telling = {kind: self.of_kind(kind) for kind in kinds}
        found = []
        for _ in range(count):
            if chance.random() < 0.5:
                found.append(chance.randint(1, self.last + 1))
            else:
                record = chance.choice(telling[chance.choice(kinds)])
                found.append(chance.choice((record.start, record.end)) + chance.randint(0, 3))
        return sorted(found)


def read(logs: Path) -> Iterator[Record]:
    """Read the records of all processes, one log after the other."""
    for log in logs.glob("*.log"):
        yield from _read(log.read_bytes())


def _read(content: bytes) -> Iterator[Record]:
    at = 0
    while at < len(content):
        start, end, handle, offset, kind, size = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        yield Record(start, end, handle, offset, kind, content[at : at + size])
        at += size


class File:
    """A file, under any name: its durable content, and the changes since."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Record] = []

    def sync(self, start: int) -> None:
        """Make changes durable that had returned before a sync started."""
        later = []
        for record in self.pending:
            if record.end >= start:
                later.append(record)
            elif record.kind == TRUNCATE:
                _resize(self.durable, record.offset)
            else:
                _put(self.durable, record.data, record.offset)
        self.pending = later

    def surviving(self, chance: Random | None, lost: set[int], running: list[Record]) -> bytearray:
        """Return the file after a power cut that loses these journal entries.

        Without `chance`, all other changes survive.
        """
        left = bytearray(self.durable)
        run: list[Record] = []
        border: int | None = None  # the lowest size of a lost truncation
        for record in [*self.pending, *running]:
            if record.kind == TRUNCATE and record.start in lost:
                border = record.offset if border is None else min(border, record.offset)
            elif record.kind == TRUNCATE:
                _write_back(left, run, chance)
                run = []
                _resize(left, record.offset)
            elif border is None or record.offset + len(record.data) <= border:
                run.append(record)
        _write_back(left, run, chance)
        return left


def _resize(target: bytearray, size: int) -> None:
    del target[size:]
    target.extend(bytes(size - len(target)))


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _write_back(target: bytearray, writes: list[Record], chance: Random | None) -> None:
    """Apply a random prefix of its writes to each page; without `chance`, all writes."""
    if chance is None:
        for record in writes:
            _put(target, record.data, record.offset)
        return
    pages: dict[int, list[Record]] = {}
    for record in writes:
        last = record.offset + len(record.data) - 1
        for page in range(record.offset // PAGE, last // PAGE + 1):
            pages.setdefault(page, []).append(record)
    keeps = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    tears = chance.choice((0.0, 0.0, 0.2))
    for page, records in pages.items():
        fate = chance.random()
        if fate < tears:
            for at in range(page * PAGE, (page + 1) * PAGE, SECTOR):
                for record in records[: chance.randint(0, len(records))]:
                    _put_within(target, record, at, at + SECTOR)
        else:
            kept = fate < tears + keeps
            count = len(records) if kept else chance.randint(0, len(records) - 1)
            for record in records[:count]:
                _put_within(target, record, page * PAGE, (page + 1) * PAGE)


def _put_within(target: bytearray, record: Record, low: int, high: int) -> None:
    low = max(low, record.offset)
    high = min(high, record.offset + len(record.data))
    if low < high:
        _put(target, record.data[low - record.offset : high - record.offset], low)


class Disk:
    """The folder during the replay of a trace, up to a moment that only moves forward."""

    def __init__(self, trace: Trace, unsynced: str | None = None) -> None:
        """Syncs of the file `unsynced` do nothing, to check that its loss is detected."""
        self._trace = trace
        self._unsynced = unsynced and str(trace.folder / unsynced)
        self._forgetful: set[int] = set()
        self._next = 0
        self._handles: dict[int, File | None] = {}
        self._live: dict[str, File] = {}
        self._folder = File()
        self._journal: list[tuple[Record, File]] = []
        self._committed = 0  # the number of durable journal entries

    def advance(self, moment: int) -> None:
        """Replay the operations that had ended before the moment."""
        records = self._trace.records
        while self._next < len(records) and records[self._next].end < moment:
            self._do(records[self._next])
            self._next += 1

    def unsynced(self) -> int:
        """Return how many changes a power cut may lose now."""
        return sum(len(file.pending) for file in self._live.values())

    def write(self, folder: Path, moment: int, chance: Random | None) -> None:
        """Write the folder as it may be after a power cut at this moment.

        Without `chance`, write it as readers saw it before the power cut.
        """
        least, most = self._committed, len(self._journal)
        kept = most if chance is None else chance.choice((least, most, chance.randint(least, most)))
        names: dict[str, File] = {}
        for record, file in self._journal[:kept]:
            _rename(names, record, file)
        lost = {record.start for record, _ in self._journal[kept:]}
        running = self._running(moment) if chance is not None else {}
        for name, file in names.items():
            content = file.surviving(chance, lost, running.get(id(file), []))
            (folder / Path(name).name).write_bytes(content)

    def _running(self, moment: int) -> dict[int, list[Record]]:
        """Return the writes that had started before the moment and end after it."""
        found: dict[int, list[Record]] = {}
        for record in self._trace.records[self._next : self._next + 100]:
            file = self._handles.get(record.handle)
            if record.kind == WRITE and record.start < moment and file is not None:
                found.setdefault(id(file), []).append(record)
        return found

    def _do(self, record: Record) -> None:
        if record.kind == OPEN:
            self._open(record)
        elif record.kind in (UNLINK, RENAME, LINK):
            name = record.data.decode().split("\n")[0]
            if not name.endswith(IGNORED):
                self._note(record, self._live[name])
        elif record.kind != NOTE:
            self._change(record)

    def _open(self, record: Record) -> None:
        name = record.data.decode()
        file: File | None = None
        if name == str(self._trace.folder):
            file = self._folder
        elif not name.endswith(IGNORED):
            if record.offset:
                file = File()
                self._note(record, file)
            else:
                file = self._live[name]
        self._handles[record.handle] = file
        if name == self._unsynced:
            self._forgetful.add(record.handle)

    def _change(self, record: Record) -> None:
        file = self._handles[record.handle]
        if file is None:
            return
        if record.kind == WRITE:
            file.pending.append(record)
        elif record.kind == TRUNCATE:
            file.pending.append(record)
            self._note(record, file)
        elif record.handle in self._forgetful:
            pass
        elif file is not self._folder:
            self._commit(record, file)
            file.sync(record.start)
        elif record.kind == SYNC:
            self._commit(record, None)

    def _note(self, record: Record, file: File) -> None:
        self._journal.append((record, file))
        _rename(self._live, record, file)

    def _commit(self, sync: Record, file: File | None) -> None:
        for at in range(len(self._journal) - 1, self._committed - 1, -1):
            record, whose = self._journal[at]
            if record.end < sync.start and file in (None, whose):
                self._committed = at + 1
                return


def _rename(names: dict[str, File], record: Record, file: File) -> None:
    """Apply one journal entry to the names in the folder."""
    if record.kind == OPEN:
        names[record.data.decode()] = file
    elif record.kind == UNLINK:
        del names[record.data.decode()]
    elif record.kind == RENAME:
        before, after = record.data.decode().split("\n")
        names[after] = names.pop(before)
    elif record.kind == LINK:
        before, after = record.data.decode().split("\n")
        names[after] = names[before]


def reserve(path: Path) -> None:
    """Create a sparse reserve file beside a database, so that it is not allocated each time."""
    handle = os.open(f"{path}-reserve", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(handle, RESERVE)
    os.close(handle)
