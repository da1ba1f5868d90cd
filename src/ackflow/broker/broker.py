"""The broker: connects the store, the writer, waiting pops and upkeep.

It decides when verbs run and which of them are synced; the verbs are in modules of their own.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ..clock import SECOND, Clock, Signal, micros
from ..errors import AckflowError, NotMyTurn, SessionClosed
from ..model import Upkeep
from ..store.group_commit import Writer
from ..store.protocol import Store
from ..store.tx import LaneNotSwept, Tx
from .core.handout import Handout
from .core.pop import pop
from .core.push import Answer, push
from .core.upkeep.sweeps import SliceResult, Unfinished, run_slice, sweep_from
from .observers import DeliveryObserver
from .presence import TURN_SECONDS, Presence, leave, take_turn, turn, write_clock
from .reach.reach import reach_of
from .requests import PopRequest, PushRequest
from .sampling.live_stats import StatsBoard
from .sampling.series import Sampler
from .upkeep import UpkeepRunner
from .verb import IN_SLICES
from .views.metrics import snapshot
from .waiters import Waiters

P = ParamSpec("P")
T = TypeVar("T")
POLL_SECONDS = 0.005
QUIET_POLL_SECONDS = 0.04  # once nothing has changed for 2 s: polls at 5 ms cost 2 % of a core
QUIET_PART = 0.02  # in between, a poll is late by at most this part of the quiet time before it
BUSY_ROUND_SECONDS = 0.05
IDLE_ROUND_SECONDS = 1.0
SWEEP_RESTS = 1.0  # a call that sweeps pauses for this many times the duration of a slice

log = logging.getLogger("ackflow")


class StoreInfo(Protocol):
    """The methods of a store that a session uses."""

    @property
    def id(self) -> int: ...
    def backup(self, target: str) -> None: ...


class Verbs(Protocol):
    """The methods of a broker that a session uses, embedded or over HTTP.

    `whole`: it accepts many messages as one encoded JSON array. `local`: it runs in this process,
    so that a wait occupies no connection and a lost answer cannot happen.
    """

    clock: Clock
    whole: bool
    local: bool

    @property
    def store(self) -> StoreInfo: ...
    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def look(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def query(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def push(self, request: PushRequest) -> Answer: ...
    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout: ...
    def upkeep(self) -> Upkeep: ...
    def close(self) -> None: ...


class Broker:
    """Runs verbs on one store. Every method may be called from any thread."""

    local = True

    def __init__(self, store: Store, clock: Clock, upkeep: bool = True) -> None:
        self.store: Store = store
        self.clock = clock
        self.whole = True
        self.waiters = Waiters()
        self.writer = Writer(store, push, self.waiters.wake, reach_of)
        self.observer = DeliveryObserver()
        self.writer.observe(self.observer)
        self._keeper = UpkeepRunner(self.read, self._keep)
        self._driven = self._keeper.driven  # sweeps that calls of this process run
        self._name = secrets.token_hex(8)
        self.stats = StatsBoard(lambda: self.read(snapshot), clock.steady)
        self.sampler = Sampler(self.stats, self._no_other_turn, self._keep, clock.now)
        self._presence = Presence(self._name, self.write, clock)
        self._turn_until: int | None = None  # monotonic time at which the turn must be renewed
        self._keeping = threading.Lock()
        self._closing = threading.RLock()
        self._closed = threading.Event()
        self._ended = False
        self._open = True  # the opposite of `_closed`; cheaper to check before each verb
        self._thread: threading.Thread | None = None
        if upkeep:
            self._thread = threading.Thread(
                target=self._look_after, name="ackflow-upkeep", daemon=True
            )
            self._thread.start()

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one verb in a group commit; `synced`: return only after it is on disk."""
        self.check_open()
        if verb in IN_SLICES:
            self.catch_up()  # in slices, so that the verb itself finds few leases to end
        some = partial(verb, **kwargs) if kwargs else verb
        answer = self.writer.run(some, args, synced=synced)
        return self.finish(answer) if type(answer) is Unfinished else answer  # type: ignore[no-any-return]

    def finish(self, begun: Unfinished) -> Any:
        """Run the slices of sweeps until they have ended, and return the answer of their verb.

        The sweeps are stored: if this process dies, the upkeep of another one continues them.
        """
        purged = 0
        self._driven.update(begun.sweeps)
        try:
            for id in begun.sweeps:
                while not (result := self._slice(id)).ended:
                    pass
                purged += result.purged
        finally:
            self._driven.difference_update(begun.sweeps)
        return purged if begun.answer is None else begun.answer

    def _slice(self, id: int) -> SliceResult:
        """Run a slice of a sweep, and let others write for as long as it took."""
        self.check_open()
        started = time.monotonic()
        result = self.write(partial(run_slice, id=id))
        if not result.ended:
            self._closed.wait(min(SWEEP_RESTS * (time.monotonic() - started), 0.1))
        return result

    def look(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb in a read-only transaction, on a snapshot, concurrently with the writer."""
        self.check_open()

        def verb_on(tx: Tx) -> T:
            return verb(tx, *args, **kwargs)

        while (found := self.read(partial(_look, verb=verb_on))) is _LATER:
            UpkeepRunner(self.read, self.write).make_cursors()
        return found  # type: ignore[return-value]

    def query(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb like `look`, after expired leases have ended."""
        self.catch_up()
        return self.look(verb, *args, **kwargs)

    def push(self, request: PushRequest) -> Answer:
        self.check_open()
        return self.writer.run(_never, synced=True, merge=request)  # type: ignore[no-any-return]

    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        """Pop, waiting up to `wait` seconds for messages."""
        return wait_and_pop(self, request, wait)

    @contextlib.contextmanager
    def wait_for(self, request: PopRequest, signal: Signal) -> Iterator[None]:
        """Inside the context, set the signal whenever there may be messages to pop."""
        kind = request.wait_key
        self.waiters.enter(kind, signal)
        self.clock.watch(signal)
        try:
            yield
        finally:
            self.clock.unwatch(signal)
            self.waiters.leave(kind, signal)
            self.waiters.wake_next(kind)  # this waiter may be the only one that knew a due time

    def try_pop(self, request: PopRequest) -> Handout:
        self.check_open()
        answer: Handout = self.writer.run(pop, (request,), synced=False)
        while answer.again and not answer.runs:
            answer = self.writer.run(pop, (request,), synced=False)
        if answer.runs and self.waiters.by_key:
            self.waiters.wake_next(request.wait_key)
        return answer

    def read(self, verb: Callable[[Tx], T]) -> T:
        """Run a verb on a snapshot; sweeps are applied to the lanes that it needs first."""
        while True:
            try:
                return self.store.read(verb)
            except LaneNotSwept as found:
                self.write(partial(sweep_from, lane_id=found.lane))

    def write(self, verb: Callable[[Tx], T]) -> T:
        return self.writer.run(verb, synced=False)  # type: ignore[no-any-return]

    def upkeep(self) -> Upkeep:
        """Run every duty of upkeep once, now, even if another process has the turn."""
        self.check_open()
        with self._keeping:
            return UpkeepRunner(self.read, self.write, whole=True).run_once()

    def catch_up(self) -> None:
        """End expired leases and make claims due, so that a following read sees them."""
        self.check_open()
        keeper = UpkeepRunner(self.read, self.write)
        while keeper.expire():
            pass

    def close(self) -> None:
        """Stop upkeep and waiting pops, and close the database.

        A second call has no effect, unless the first one was interrupted.
        """
        with self._closing:
            if self._ended:
                return
            self._open = False
            self._closed.set()
            self.waiters.present.set()
            self.waiters.wake_all()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
            if self._turn_until is not None or self._presence.announced:
                self.store.hurry()
                with contextlib.suppress(AckflowError):
                    self.write(partial(leave, name=self._name))
                self._turn_until, self._presence.announced = None, False
            self.writer.close()
            with self.writer.exclusively():
                self.store.close()
            self._ended = True

    @property
    def commits(self) -> int:
        """Transactions committed by this process."""
        return self.writer.commits

    @property
    def verbs(self) -> int:
        """Verbs run by this process; many share one transaction."""
        return self.writer.verbs

    def ack_times(self) -> dict[int, list[int]]:
        """Times from delivery to ack by group; see `DeliveryObserver.times`."""
        return self.observer.times()

    def check_open(self) -> None:
        """Raise SessionClosed if the broker is closed."""
        if not self._open:
            raise SessionClosed()

    def _look_after(self) -> None:
        """Run the upkeep thread: rounds of upkeep, and polls for commits of other processes."""
        next_round, seen, quiet = self.clock.steady(), -1, 0.0
        while not self._closed.is_set():
            if self.clock.steady() >= next_round:
                pause = BUSY_ROUND_SECONDS if self._round() else IDLE_ROUND_SECONDS
                next_round = self.clock.steady() + micros(pause)
            left = max(0.0, (next_round - self.clock.steady()) / SECOND)
            if self.waiters.present.is_set():
                pause = min(left, poll_pause(quiet))
                self._closed.wait(pause)
                quiet += pause
                with contextlib.suppress(AckflowError):
                    version = self.store.changed()
                    if version != seen:
                        seen, quiet = version, quiet_after_change(quiet)
                        self.waiters.wake()
            else:
                self.waiters.present.wait(left)

    def _keep(self, duty: Callable[[Tx], T]) -> T:
        """Run a duty of upkeep if this process holds or gets the turn; else raise NotMyTurn."""
        if self._turn_until is None or self.clock.steady() >= self._turn_until:
            self.write(partial(take_turn, name=self._name))
            self._turn_until = self.clock.steady() + micros(TURN_SECONDS / 2)
        return self.write(duty)

    def _no_other_turn(self) -> bool:
        """Whether this process has the turn, or may take it; reads only."""
        if self._turn_until is not None and self.clock.steady() < self._turn_until:
            return True
        holder, until = self.read(turn)
        return holder == self._name or until <= self.clock.now()

    def _round(self) -> bool:
        try:
            if self.clock.to_write():
                self.write(write_clock)
            self._presence.run_once()
            with self._keeping:
                more = self._keeper.run_once().total > 0 or self._keeper.unfinished
                self.sampler.run_once()
                return more
        except NotMyTurn:
            return False
        except AckflowError as error:
            if not self._closed.is_set():
                log.warning("upkeep failed and will be retried: %s", error)
            return False


class Popping(Protocol):
    """The methods of a broker that a waiting pop uses."""

    clock: Clock

    def try_pop(self, request: PopRequest) -> Handout: ...
    def wait_for(
        self, request: PopRequest, signal: Signal
    ) -> contextlib.AbstractContextManager[None]: ...


def wait_and_pop(broker: Popping, request: PopRequest, wait: float) -> Handout:
    """Pop, waiting up to `wait` seconds for messages."""
    answer = broker.try_pop(request)
    if answer.runs or wait <= 0:
        return answer
    deadline = broker.clock.steady() + micros(wait)
    signal = Signal()
    with broker.wait_for(request, signal):
        while True:
            signal.clear()
            answer = broker.try_pop(request)
            if answer.runs or broker.clock.steady() >= deadline:
                return answer
            signal.wait(wait_seconds(broker.clock, deadline, answer.retry_at))


def wait_seconds(clock: Clock, deadline: int, retry_at: int | None) -> float:
    """Return how long a pop waits: until its deadline, or until a message of its group is due.

    The deadline is a monotonic time, and the result is in seconds.
    """
    left = clock.seconds_left(deadline)
    return left if retry_at is None else min(left, clock.seconds_until(retry_at))


def poll_pause(quiet: float) -> float:
    """Return the pause before the next poll for commits of other processes, after quiet seconds."""
    return min(max(POLL_SECONDS, quiet * QUIET_PART), QUIET_POLL_SECONDS)


def quiet_after_change(quiet: float) -> float:
    """Return the quiet time that counts after a change, so that one alone makes few polls.

    After a long pause the polls are 10 ms apart, and 5 ms with the next change.
    """
    return min(quiet, QUIET_POLL_SECONDS / QUIET_PART) / 4


_LATER = object()


def _look(tx: Tx, verb: Callable[[Tx], T]) -> T | object:
    """Run a read, or return `_LATER` while a new group lacks cursors: reads count all lanes."""
    return _LATER if tx.all("groups_in_the_making") else verb(tx)


def _never(_: Tx) -> Sequence[Any]:
    raise AssertionError("pushes are merged")
