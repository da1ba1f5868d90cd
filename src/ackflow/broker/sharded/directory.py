"""Finds the database of a queue, a lease or a name: it asks the databases and keeps the answers.

There is no table of places that could be wrong. A queue is where it exists; a new one goes where the
rendezvous hash of its name says, so that brokers with the same list of databases agree. A database
that is added has no queues: nothing moves by itself.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ...errors import InvalidArgument, StorageAway
from ...ids import parse_message_id
from ...store.tx import Tx
from ..core.leases import queue_of_lease
from ..core.values import find
from ..reach.scope import queues_behind
from ..verb import Scope
from .database import Database

K = TypeVar("K")
V = TypeVar("V")
TRUST_SECONDS = 2.0  # after this, the database is asked whether it still has the queue
REMEMBERED = 100_000


class NotKnown(Exception):
    """The answer is not known, and the caller did not want to wait for a database."""


class Home(Struct):
    """The databases of a queue; `spread`: its partitions are divided among them."""

    databases: list[Database]
    asked_at: float


class Directory:
    """Finds databases. With `ask=False` it raises NotKnown in place of asking a database."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self.databases = databases
        self._homes: Remembered[str, Home] = Remembered()
        self._leases: Remembered[int, Database] = Remembered()

    def homes(self, queue: str, ask: bool = True) -> list[Database]:
        """Return the databases that have a queue; none if it does not exist.

        If a database is away, which may have it, the queue must be found in another one.
        """
        known = self._homes.get(queue)
        if known is not None and time.monotonic() < known.asked_at + TRUST_SECONDS:
            return known.databases
        if not ask:
            raise NotKnown()
        asked_at = time.monotonic()
        if known is not None and len(known.databases) == 1:
            (only,) = known.databases
            with only.broker() as broker:
                if broker.read(lambda tx: tx.queue(queue) is not None):
                    known.asked_at = asked_at
                    return known.databases
        found, spread, away = [], False, []
        for database in self.databases:
            try:
                with database.broker() as broker:
                    options = broker.read(lambda tx: _options(tx, queue))
            except StorageAway:
                away.append(database)
                continue
            if options is not None:
                found.append(database)
                spread = spread or options
        if away:
            if not found:
                raise StorageAway(
                    f"queue {queue!r} is in none of the databases that answer, and "
                    f"{_names(away)} is away"
                )
            if spread or known is not None:
                was = self.databases if known is None else known.databases
                found = [
                    one for one in self.databases if one in found or (one in was and one in away)
                ]
        if found:
            self._homes.put(queue, Home(found, asked_at))
        else:
            self._homes.drop(queue)
        return found

    def place(self, queue: str, partition: str, ask: bool = True) -> Database | None:
        """Return the database of a partition, or None if the queue does not exist."""
        homes = self.homes(queue, ask)
        return homes[0] if len(homes) == 1 else choose(homes, partition) if homes else None

    def for_new(self, name: str) -> Database:
        """Return the database for something new with this name."""
        return choose(self.databases, name)

    def lease(self, token: int, ask: bool = True) -> Database | None:
        """Return the database of a lease, or None if it is unknown."""
        known = self._leases.get(token)
        if known is not None:
            return known
        if not ask:
            raise NotKnown()
        found = self._first(lambda tx: queue_of_lease(tx, token), "the lease")
        if found is not None:
            self.remember(token, found)
        return found

    def remembered(self, token: int | None) -> Database | None:
        """Return the database of a lease that this process knows."""
        return None if token is None else self._leases.get(token)

    def remember(self, token: int | None, database: Database) -> None:
        """Remember where a lease is."""
        if token is not None:
            self._leases.put(token, database)

    def behind(self, scope: Scope) -> Database | None:
        """Return the database of readers, producers, stages or batches."""
        return self._first(lambda tx: queues_behind(tx, scope) or None, "it")

    def value(self, keys: Iterable[str], least: Database | None) -> Database | None:
        """Return the database that has one of these values. One that is away is left out."""
        for database in sorted(self.databases, key=lambda one: one is not least):
            if database.up:
                with database.broker() as broker:
                    if broker.read(lambda tx: any(find(tx, key) is not None for key in keys)):
                        return database
        return None

    def of_message(self, id: str, among: Sequence[Database]) -> Database | None:
        """Return the database that a message id names."""
        store = parse_message_id(id).store
        return next((one for one in among if one.store == store), None)

    def forget(self, queue: str) -> None:
        self._homes.drop(queue)

    def _first(self, verb: Callable[[Tx], Any], what: str) -> Database | None:
        away = []
        for database in self.databases:
            try:
                with database.broker() as broker:
                    if broker.read(verb) is not None:
                        return database
            except StorageAway:
                away.append(database)
        if away:
            raise StorageAway(
                f"{what} is in none of the databases that answer, and {_names(away)} is away"
            )
        return None


def choose(databases: Sequence[Database], name: str) -> Database:
    """Return the database with the highest hash of its id and a name (rendezvous hashing).

    Another database more or less changes the answer for its own share of the names only.
    """
    unseen = [one for one in databases if one.store is None]
    if unseen:
        raise StorageAway(
            f"{_names(unseen)} is away and was never reached, so no new queue can be created"
        )
    return max(databases, key=lambda one: blake2b(f"{one.store}/{name}".encode()).digest())


def check_different(databases: Sequence[Database]) -> None:
    """Raise if one database was named twice, or is a copy of another."""
    seen: dict[int, Database] = {}
    for database in databases:
        if database.store is None:
            continue
        other = seen.setdefault(database.tag, database)
        if other is not database:
            raise InvalidArgument(
                f"{other.place} and {database.place} are the same database, or one is a copy of "
                "the other: each must have an id of its own"
            )


def _options(tx: Tx, queue: str) -> bool | None:
    """Return whether a queue is spread, or None if it does not exist."""
    found = tx.queue(queue)
    return None if found is None else found.options.spread


def _names(databases: Sequence[Database]) -> str:
    return " and ".join(database.place for database in databases)


class Remembered(Generic[K, V]):
    """The newest few places; the oldest are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        return self._kept.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)

    def drop(self, key: K) -> None:
        with self._lock:
            self._kept.pop(key, None)
