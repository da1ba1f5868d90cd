"""The interfaces between the broker, group commit and the stores.

A new store implements `Store`; everything above it is written against these protocols alone.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..clock import Clock
from ..ids import GroupId, LaneId

if TYPE_CHECKING:
    from .counters import Tally
    from .tx import Tx

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Reach:
    """What a verb reads and changes: queues, named or found by what belongs to them.

    `values`: keyed values; `turn`: which broker runs upkeep. `fences` is the store's: what it locks
    for these, or None where that is not known.
    """

    queues: Collection[str] = ()
    leases: Collection[int] = ()
    groups: Collection[GroupId] = ()
    lanes: Collection[LaneId] = ()
    values: bool = False
    turn: bool = False
    fences: frozenset[int] | None = field(default=None)


EVERYTHING: Reach | None = None


class WiderReach(Exception):
    """A verb needs more than the reach with which its transaction began; nothing was committed."""


class CommitLost(Exception):
    """A commit that was not synced was lost by a crash of the server, and may be run again."""


class Flight(Protocol):
    """A transaction on its way. An event loop starts it, takes a step whenever `fileno` is ready, and
    lands it when it wants to read (1) and to write (2) nothing more."""

    fileno: int
    wants: int

    def start(self) -> None: ...
    def step(self, ready: int) -> None: ...
    def finish(self) -> None:
        """Wait until it has ended."""

    def land(self) -> "Tx | None":
        """Return the committed transaction; None: `resolve` must find out what became of it."""

    def resolve(self) -> "Tx":
        """Return the transaction if it was committed all the same, or raise; it may wait."""


class TransactionalStore(Protocol):
    """A store as group commit uses it: it runs a body in one transaction, committed on return.

    `interrupted` is the exception that a signal handler raised after the commit. `sync` fsyncs all
    commits at least up to a number of the sync record. If it is None, `transact` returns only after
    a commit with `synced` is on disk. `transact_at_once` is `transact` for an event loop: it returns
    None, and changes nothing, where it would have to wait; a store without it has None. `launch` does
    not even wait for the commit, which is synced: the loop follows the transaction.

    A store that is `by_queue` locks only what is asked for: the first of `reaches` in any case, and
    of the others what is free. The body runs the verbs that `Tx.admits`.
    """

    interrupted: BaseException | None
    by_queue: bool

    @property
    def sync(self) -> Callable[[int], None] | None: ...
    @property
    def transact_at_once(self) -> "Callable[[Callable[[Tx], None], bool], Tx | None] | None": ...
    @property
    def launch(
        self,
    ) -> "Callable[[Callable[[Tx], None], Sequence[Reach | None]], Flight | None] | None": ...
    def transact(
        self,
        body: "Callable[[Tx], None]",
        synced: bool,
        reaches: Sequence[Reach | None] = (EVERYTHING,),
    ) -> "Tx": ...


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
    """Records committed events under the writer lock; logs them after the lock is released."""

    @property
    def pending(self) -> Collection[object]: ...
    def record(self, tally: "Tally") -> None: ...
    def log_pending(self) -> None: ...


class UnsyncedMessages(Protocol):
    """The messages that are committed but not yet fsynced, across all processes on the file.

    Commits are numbered in the order in which they become visible; `begun` is the last number.
    """

    @property
    def begun(self) -> int: ...
    def note(self, lane: int = 0, first: int = 0) -> None: ...
    def unsynced(self, lane: LaneId, stop: int) -> bool: ...
