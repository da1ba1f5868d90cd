"""Which brokers work on a database: each leaves a row, renews it, and deletes it when it closes.

    meta: "broker NAME" ─► who it is, since when, and when the row was written

A broker is a process with the database open: a server, a worker, a command, a program of a user. Its
row counts for a minute, so that one that was killed is gone from the list then; the next renewal of
any other broker deletes the row. A row that was written while the clock was ahead counts as old.

One of the brokers has the turn of upkeep, for ten seconds at a time.

    meta: "upkeep" ─► its name, and the end of the turn
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..clock import Clock, micros
from ..errors import NotMyTurn
from ..model import BrokerInfo, when
from ..store.tx import Tx
from .reach.merging import Arguments, Several
from .verb import verb

FIRST_SECONDS = 2.0  # a command that ends before that writes no row
RENEW_SECONDS = 20.0
LIVE_SECONDS = 60.0
MOST = 1_000
TURN_SECONDS = 10.0
PREFIX, END = "broker ", "broker!"


class Identity(Struct, frozen=True):
    """What a broker says about its process."""

    program: str
    host: str
    pid: int
    version: str


class Record(Identity, frozen=True, kw_only=True):
    """The row of a broker. Times are microseconds since 1970."""

    started_at: int
    seen_at: int


class Presence:
    """Writes the row of one broker; called by its rounds of upkeep."""

    def __init__(self, name: str, write: Callable[[Callable[[Tx], None]], None], clock: Clock):
        self._name, self._write, self._clock = name, write, clock
        self._started = clock.steady()
        self._next = self._started + micros(FIRST_SECONDS)
        self.announced = False

    def run_once(self) -> None:
        """Write the row if it is time to renew it."""
        now = self._clock.steady()
        if now < self._next:
            return
        self._next = now + micros(RENEW_SECONDS)
        age = now - self._started
        self._write(partial(announce, name=self._name, identity=identity(), age=age))
        self.announced = True


def announce(tx: Tx, name: str, identity: Identity, age: int) -> None:
    """Write the row of a broker that was opened `age` microseconds ago, and delete old ones."""
    row = Record(
        **msgspec.structs.asdict(identity), started_at=tx.now - age, seen_at=tx.now
    )  # fmt: skip
    for other, record in _records(tx):
        if not _is_live(tx, record):
            tx.run("drop_meta", PREFIX + other)
    tx.run("put_meta", PREFIX + name, msgspec.json.encode(row).decode())


def leave(tx: Tx, name: str) -> None:
    """Delete the row of a broker that closes, and let another have its turn of upkeep."""
    leave_turn(tx, name)
    tx.run("drop_meta", PREFIX + name)


def _merge(answers: Sequence[list[BrokerInfo]], _: Arguments) -> list[BrokerInfo]:
    """A process that has several of the databases open is one broker."""
    found: list[BrokerInfo] = []
    for answer in answers:
        known = {(one.host, one.pid) for one in found}
        found += [one for one in answer if (one.host, one.pid) not in known]
    return sorted(found, key=lambda one: one.started_at)


@verb("read-only", read_only=True, values=True, several=Several(merge=_merge))
def brokers(tx: Tx) -> list[BrokerInfo]:
    """Return the brokers of the last minute, the oldest first; at most a thousand."""
    keeper = turn(tx)[0]
    found = [
        BrokerInfo(
            name, one.program, one.host, one.pid, one.version, when(one.started_at),
            when(one.seen_at), name == keeper,
        )
        for name, one in _records(tx) if _is_live(tx, one)
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.started_at)


def _records(tx: Tx) -> list[tuple[str, Record]]:
    rows: list[tuple[Any, ...]] = tx.all("meta_between", PREFIX, END, MOST)
    return [
        (str(key).removeprefix(PREFIX), msgspec.json.decode(value, type=Record))
        for key, value in rows
    ]


def _is_live(tx: Tx, record: Record) -> bool:
    return abs(tx.now - record.seen_at) < micros(LIVE_SECONDS)


def identity() -> Identity:
    version: str = import_module("ackflow").__version__  # it imports this module
    return Identity(_program(), socket.gethostname(), os.getpid(), version)


def _program() -> str:
    """The name of the program, with the command of `ackflow`; never an argument."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    if name in ("ackflow", "__main__.py") and len(sys.argv) > 1 and sys.argv[1].isalpha():
        return f"ackflow {sys.argv[1]}"
    return name or "python"


def take_turn(tx: Tx, name: str) -> None:
    """Take or extend the turn; raises NotMyTurn while another broker has it."""
    holder, until = turn(tx)
    # A turn that ends later than possible was taken while the clock was ahead.
    if holder != name and tx.now < until <= tx.now + micros(2 * TURN_SECONDS):
        raise NotMyTurn()
    tx.run("put_meta", "upkeep", f"{name} {tx.now + micros(TURN_SECONDS)}")


def leave_turn(tx: Tx, name: str) -> None:
    if turn(tx)[0] == name:
        tx.run("put_meta", "upkeep", f"{name} 0")


def write_clock(_: Tx) -> None:
    """Do nothing: every transaction writes the pending clock correction itself."""


def turn(tx: Tx) -> tuple[str, int]:
    """Return the broker that has the turn, and the end of the turn."""
    found = tx.value("get_meta", "upkeep")
    holder, until = str(found).split(" ") if found else ("", "0")
    return holder, int(until)
