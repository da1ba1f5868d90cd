"""A simulated disk: files in memory whose unsynced writes are lost at random in a power cut.

Creating, deleting and truncating a file are durable at once. A write is durable after the next sync
of its file; until then a power cut may keep it, drop it or tear it between two sectors.
"""

import itertools
from pathlib import Path
from random import Random

import apsw

SECTOR = 512
_lives = itertools.count()


class PowerCut(apsw.IOError):
    """The power is off; nothing reaches the disk any more."""


class Platter:
    """One file: its durable content, the content that readers see, and the unsynced writes."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.seen = bytearray(content)
        self.unsynced: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.seen, data, offset)
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _put(self.durable, data, offset)
        self.unsynced.clear()

    def truncate(self, size: int) -> None:
        del self.seen[size:]
        del self.durable[size:]
        self.unsynced = [
            (offset, data[: size - offset]) for offset, data in self.unsynced if offset < size
        ]

    def surviving(self, chance: Random) -> bytes:
        """Return the durable content with a random subset of the unsynced writes."""
        keeps = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        left = bytearray(self.durable)
        for offset, data in self.unsynced:
            if chance.random() < 0.2:
                _put(left, *_torn(chance, offset, data))
            elif chance.random() < keeps:
                _put(left, data, offset)
        return bytes(left)


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _torn(chance: Random, offset: int, data: bytes) -> tuple[bytes, int]:
    """Return the part of a write on one side of a sector boundary."""
    first = SECTOR - offset % SECTOR
    at = chance.choice(range(first, len(data), SECTOR) or [0])
    return (data[:at], offset) if chance.random() < 0.5 else (data[at:], offset + at)


class Disk:
    """Files under one power supply, which fails after a number of writes and syncs.

    After a power cut the surviving files are in a new Disk with a folder of its own, so that later
    operations of the interrupted program, such as closing its connection, have no effect.
    """

    def __init__(self) -> None:
        self.folder = Path(f"/life-{next(_lives)}")
        self.files: dict[str, Platter] = {}
        self.gone = False
        self.on = True
        self.steps = 0
        self.cuts_at: int | None = None

    def fail_after(self, steps: int) -> None:
        """Make the power fail during the given step, counted from now."""
        self.cuts_at = self.steps + steps

    def step(self) -> bool:
        """Count one change of the disk; returns True if the power fails during it."""
        if self.gone:
            return False
        if not self.on:
            raise PowerCut()
        self.steps += 1
        self.on = self.cuts_at is None or self.steps < self.cuts_at
        return not self.on

    def cut(self, chance: Random) -> "Disk":
        """Cut the power if it is still on; returns the disk after the power is back."""
        self.on, self.gone = False, True
        after = Disk()
        for name, platter in self.files.items():
            after.files[str(after.folder / Path(name).name)] = Platter(platter.surviving(chance))
        return after

    def export(self, folder: Path) -> None:
        """Write the durable content of the files to a real folder, for the default VFS."""
        for name, platter in self.files.items():
            (folder / Path(name).name).write_bytes(platter.durable)


class DiskFile(apsw.VFSFile):
    """An open file of a Disk. It does not use the real file system."""

    def __new__(cls, *_: object) -> "DiskFile":
        return super().__new__(cls)

    def __init__(self, disk: Disk, platter: Platter) -> None:
        # The base class would open a real file.
        self._disk = disk
        self._platter = platter

    def excepthook(self, etype: object, evalue: object, etraceback: object) -> None:
        """Ignore power cuts after which SQLite continues, for example with a rollback."""
        assert isinstance(evalue, PowerCut)

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._platter.seen[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        failing = self._disk.step()
        self._platter.write(bytes(data), offset)
        if failing:
            raise PowerCut()

    def xSync(self, flags: int) -> None:
        # A sync during which the power fails may still have succeeded.
        failing = self._disk.step()
        if not failing or self._disk.steps % 2:
            self._platter.sync()
        if failing:
            raise PowerCut()

    def xTruncate(self, newsize: int) -> None:
        failing = self._disk.step()
        self._platter.truncate(newsize)
        if failing:
            raise PowerCut()

    def xFileSize(self) -> int:
        return len(self._platter.seen)

    def xClose(self) -> None:
        pass

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class DiskVFS(apsw.VFS):
    """The VFS of the current Disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        super().__init__(name, "")

    def excepthook(self, etype: object, evalue: object, etraceback: object) -> None:
        assert isinstance(evalue, PowerCut)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        assert name is not None, "temporary tables are kept in memory"
        path = name if isinstance(name, str) else name.filename()
        flags[1] = flags[0]
        if Path(path).parent != self.disk.folder:
            return DiskFile(Disk(), Platter())
        return DiskFile(self.disk, self.disk.files.setdefault(path, Platter()))

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self.disk.files

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if filename in self.disk.files and not self.disk.gone:
            failing = self.disk.step()
            del self.disk.files[filename]
            if failing:
                raise PowerCut()

    def xFullPathname(self, name: str) -> str:
        return name
