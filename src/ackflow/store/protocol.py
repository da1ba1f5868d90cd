"""The interfaces between the broker, group commit and the stores.

A new store implements `Store`; everything above it is written against these protocols alone.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..clock import Clock
from ..ids import LaneId

if TYPE_CHECKING:
    from .counters import Tally
    from .tx import Tx

T = TypeVar("T")


class TransactionalStore(Protocol):
    """A store as group commit uses it: it runs a body in one transaction, committed on return.

    `interrupted` is the exception that a signal handler raised after the commit was done. `sync`
    fsyncs what is committed, at least up to a number of the sync record; a store without it has
    fsynced every commit that asked for it before `transact` returns.
    """

    interrupted: BaseException | None

    @property
    def sync(self) -> Callable[[int], None] | None: ...
    def transact(self, body: "Callable[[Tx], None]", synced: bool) -> "Tx": ...


class Store(TransactionalStore, Protocol):
    """A database as the broker uses it."""

    id: int
    clock: Clock

    def read(self, body: "Callable[[Tx], T]") -> T: ...
    def changed(self) -> int: ...
    def backup(self, target: str) -> None: ...
    def hurry(self) -> None: ...
    def close(self) -> None: ...


class CommitObserver(Protocol):
    """Records what was committed under the writer's lock; logs it after the lock is released."""

    @property
    def pending(self) -> Collection[object]: ...
    def record(self, tally: "Tally") -> None: ...
    def log_pending(self) -> None: ...


class UnsyncedMessages(Protocol):
    """Which messages are committed and not yet fsynced, for every process that has the file open.

    Commits are numbered in the order in which they become visible; `begun` is the last number.
    """

    @property
    def begun(self) -> int: ...
    def note(self, lane: int = 0, first: int = 0) -> None: ...
    def unsynced(self, lane: LaneId, stop: int) -> bool: ...
