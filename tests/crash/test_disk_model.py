"""The disk model for replayed power cuts: which changes must survive, and which may be lost."""

import itertools
from pathlib import Path
from random import Random

import pytest
from replay import DATASYNC, OPEN, RENAME, SYNC, TRUNCATE, UNLINK, WRITE, Disk, Record, Trace

FOLDER = "/data"
Survivors = set[tuple[tuple[str, bytes], ...]]


class Tape:
    """A hand-written trace: each operation ends before the next one starts."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._handles: dict[str, int] = {}
        self.records: list[Record] = []

    def add(self, kind: int, name: str = "", offset: int = 0, data: bytes = b"") -> Record:
        start, end = next(self._numbers), next(self._numbers)
        record = Record(start, end, self._handles.get(name, 0), offset, kind, data)
        self.records.append(record)
        return record

    def open(self, name: str, created: bool = True) -> None:
        path = f"{FOLDER}/{name}".rstrip("/")
        record = self.add(OPEN, offset=int(created), data=path.encode())
        record.handle = self._handles[name] = record.start

    def unlink(self, name: str) -> None:
        self.add(UNLINK, data=f"{FOLDER}/{name}".encode())

    def rename(self, name: str, to: str) -> None:
        self.add(RENAME, data=f"{FOLDER}/{name}\n{FOLDER}/{to}".encode())


@pytest.fixture
def tape() -> Tape:
    return Tape()


def survivors(tape: Tape, tmp_path: Path, moment: int | None = None) -> Survivors:
    """Return the folder after each of many power cuts at one moment, by default the last."""
    trace = Trace(tape.records, Path(FOLDER))
    moment = trace.last + 1 if moment is None else moment
    disk = Disk(trace)
    disk.advance(moment)
    found = set()
    for seed in range(100):
        folder = tmp_path / str(seed)
        folder.mkdir(parents=True)
        disk.write(folder, moment, Random(seed))
        files = sorted(folder.iterdir())
        found.add(tuple((file.name, file.read_bytes()) for file in files))
    return found


def test_a_write_survives_for_sure_once_a_sync_of_its_file_has_ended(
    tape: Tape, tmp_path: Path
) -> None:
    tape.open("a")
    tape.add(WRITE, "a", 0, b"x" * 8)
    tape.add(DATASYNC, "a")
    assert survivors(tape, tmp_path) == {(("a", b"x" * 8),)}


def test_a_write_without_a_sync_may_be_there_or_not(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(SYNC, "a")
    tape.add(WRITE, "a", 0, b"x" * 8)
    assert survivors(tape, tmp_path) == {(("a", b""),), (("a", b"x" * 8),)}


def test_a_write_that_returns_after_a_sync_has_started_is_not_part_of_it(
    tape: Tape, tmp_path: Path
) -> None:
    tape.open("a")
    sync = tape.add(DATASYNC, "a")
    write = tape.add(WRITE, "a", 0, b"x" * 8)
    sync.end = write.end + 1  # it runs on
    assert survivors(tape, tmp_path, sync.end + 1) == {(("a", b""),), (("a", b"x" * 8),)}


def test_a_sync_that_has_not_ended_promises_nothing(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(SYNC, "a")
    tape.add(WRITE, "a", 0, b"x" * 8)
    sync = tape.add(SYNC, "a")
    assert survivors(tape, tmp_path, sync.end) == {(("a", b""),), (("a", b"x" * 8),)}


def test_pages_survive_in_any_order_and_are_torn_between_sectors_only(
    tape: Tape, tmp_path: Path
) -> None:
    tape.open("a")
    tape.add(WRITE, "a", 0, b"-" * 8192)
    tape.add(SYNC, "a")
    tape.add(WRITE, "a", 0, b"1" * 4096)
    tape.add(WRITE, "a", 4096, b"2" * 4096)
    contents = [dict(files)["a"] for files in survivors(tape, tmp_path)]
    assert b"-" * 4096 + b"2" * 4096 in contents
    assert b"1" * 4096 + b"-" * 4096 in contents
    sectors = [[one[at : at + 512] for at in range(0, 8192, 512)] for one in contents]
    assert all(len(set(sector)) == 1 for one in sectors for sector in one)
    assert any(len(set(one[:8])) == 2 for one in sectors), "no page was torn"


def test_a_sector_is_as_after_some_of_its_writes_in_their_order(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(SYNC, "a")
    tape.add(WRITE, "a", 0, b"1111")
    tape.add(WRITE, "a", 2, b"2222")
    contents = {dict(files)["a"] for files in survivors(tape, tmp_path)}
    assert contents == {b"", b"1111", b"112222"}


def test_a_new_name_is_there_for_sure_once_its_file_or_the_folder_is_synced(
    tape: Tape, tmp_path: Path
) -> None:
    tape.open("", created=False)
    tape.open("a")
    assert survivors(tape, tmp_path / "none") == {(), (("a", b""),)}
    tape.add(DATASYNC, "")  # not enough for ext4
    assert () in survivors(tape, tmp_path / "datasync")
    tape.add(SYNC, "")
    assert survivors(tape, tmp_path / "sync") == {(("a", b""),)}


def test_a_deleted_file_may_come_back_with_what_was_synced(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(WRITE, "a", 0, b"x")
    tape.add(SYNC, "a")
    tape.unlink("a")
    assert survivors(tape, tmp_path) == {(), (("a", b"x"),)}


def test_names_survive_in_the_order_in_which_they_were_made(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(SYNC, "a")
    tape.rename("a", "b")
    tape.open("c")
    assert survivors(tape, tmp_path / "none") == {
        (("a", b""),),
        (("b", b""),),
        (("b", b""), ("c", b"")),
    }
    tape.add(DATASYNC, "c")  # also commits earlier changes
    assert survivors(tape, tmp_path / "synced") == {(("b", b""), ("c", b""))}


def test_what_was_written_behind_a_truncation_is_lost_with_it(tape: Tape, tmp_path: Path) -> None:
    tape.open("a")
    tape.add(WRITE, "a", 0, b"old")
    tape.add(SYNC, "a")
    tape.add(TRUNCATE, "a", 0)
    tape.add(WRITE, "a", 0, b"new")
    contents = {dict(files)["a"] for files in survivors(tape, tmp_path)}
    assert contents == {b"old", b"", b"new"}
