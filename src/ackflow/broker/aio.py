"""The broker for asyncio: verbs are awaited, and a waiting verb occupies no thread.

The writer thread runs all queued verbs in one commit and wakes the event loop once for all of them.

The methods of a session are written once, for threads. For asyncio they run in a greenlet, which is
suspended while an answer is awaited (docs/decisions/asyncio.md).
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from greenlet import getcurrent, greenlet

from ..clock import Signal, micros
from ..errors import SessionClosed
from ..model import Upkeep
from ..store.job import Job
from ..store.protocol import Flight
from ..store.tx import Tx
from .brief import all_brief, count_plain_pushes
from .broker import Broker, Verbs, wait_seconds
from .core.ack_and_pop import ack_and_pop
from .core.handout import Handout
from .core.pop import pop as pop_now
from .core.push import Answer
from .core.settle import settle
from .requests import Mark, PopRequest, PushRequest, Verdict
from .verb import IN_SLICES

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Handout)
PopVerb = Callable[[Tx, PopRequest], Handout]
READERS = 4
MAX_IDLE = 256  # greenlets of a thread; together they take 1.5 MiB
_DONE = object()
READ, WRITE = 1, 2  # what a flight wants to do with its connection


class _Idle(threading.local):
    """The greenlets of a thread that wait for the next call; starting one costs 8 µs."""

    def __init__(self) -> None:
        self.greenlets: list[greenlet] = []


_idle = _Idle()


def _serve(given: Any) -> None:
    """Body of a greenlet: run one call after another, until one raises."""
    while True:
        call, answers = given
        answers.append(call())
        given = call = answers = None  # not held while it is idle
        given = getcurrent().parent.switch(_DONE)  # type: ignore[union-attr]


async def spawn(call: Callable[[], T]) -> T:
    """Run a call in a greenlet; what it gives to `awaited` is awaited here."""
    idle, answers, current = _idle.greenlets, list[T](), getcurrent()
    running = idle.pop() if idle else greenlet(_serve)
    running.parent = current
    running.gr_context = current.gr_context
    step: Any = running.switch((call, answers))
    while step is not _DONE:
        try:
            answer = await step
        except BaseException as error:
            running.parent = getcurrent()  # not where it began, if that was inside another call
            step = running.throw(error)
        else:
            running.parent = getcurrent()
            step = running.switch(answer)
    running.gr_context = None
    if len(idle) < MAX_IDLE:
        idle.append(running)
    return answers[0]


def awaited(step: Awaitable[T]) -> T:
    """Wait, in a call that `spawn` runs, for something that the event loop does."""
    return getcurrent().parent.switch(step)  # type: ignore[union-attr, no-any-return]


class LoopBroker:
    """Runs verbs for one event loop; created and used only on that loop."""

    _flight: Flight | None = None  # a transaction that was launched
    _flying: list[Job]

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.leads = False  # whether the loop may commit itself: no signal handler raises in it
        self._loop = asyncio.get_running_loop()
        self._answered: deque[tuple[asyncio.Future[Any] | Callable[[Job], None], Job]] = deque()
        self._woken = False
        self._submitted: list[Job] = []
        self._returning: set[asyncio.Future[Any]] = set()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ackflow-read")

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run one verb in a group commit; `synced`: complete only after it is on disk."""
        return self._submit(partial(verb, **kwargs) if kwargs else verb, args, synced, None)

    def call(
        self,
        verb: Callable[..., Any],
        args: tuple[Any, ...],
        synced: bool,
        on_answer: Callable[[Job], None],
        calls: Sized | None = None,
    ) -> None:
        """Run one verb like `do`, and call back on the loop as soon as its result arrives there.

        `calls`: those that it answers, if it stands for several.
        """
        self.broker.check_open()
        self.enqueue(Job(verb, args, synced, None, partial(self.take, on_answer), calls=calls))

    def push(self, request: PushRequest) -> "asyncio.Future[Answer]":
        return self._submit(None, (), True, request)

    async def look(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a short verb in a read-only transaction, on a snapshot, in a worker thread.

        It must not depend on the cursors of new groups, which may not exist yet.
        """
        self.broker.check_open()
        return await self.thread(lambda: self.broker.read(lambda tx: verb(tx, *args, **kwargs)))

    def thread(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a blocking call in a worker thread."""
        return self._loop.run_in_executor(self._readers, call)

    async def pop(
        self, request: PopRequest, wait: float = 0.0, *,
        attempt: "Callable[[PopRequest], Awaitable[Handout]] | None" = None,
        signal: "LoopSignal | None" = None,
    ) -> Handout:  # fmt: skip
        """Pop, waiting up to `wait` seconds for messages, or until `signal` is stopped.

        `attempt` is called in place of `try_pop`. If it is cancelled while it waits, nothing is
        leased. If it is cancelled while the writer runs it, the messages that it leased are
        released.
        """
        attempt = attempt or self.try_pop
        answer = await attempt(request)
        if answer.runs or wait <= 0:
            return answer
        clock = self.broker.clock
        deadline = clock.steady() + micros(wait)
        signal = signal or LoopSignal(self._loop)
        with self.broker.wait_for(request, signal):
            while True:
                signal.clear()
                answer = await attempt(request)
                if answer.runs or signal.stopped or clock.steady() >= deadline:
                    return answer
                await signal.until(wait_seconds(clock, deadline, answer.retry_at))
                if signal.stopped:
                    return answer

    async def give_back(self, token: int) -> None:
        """Release every message that a lease still holds."""
        await self.do(settle, False, token, [Mark(Verdict("release"))])

    def close(self) -> None:
        while self._flight is not None:
            self._flight.finish()
            self._land()
        self._readers.shutdown(wait=False)

    async def returned(self) -> None:
        """Wait until all messages leased by cancelled pops are released."""
        if self._returning:
            await asyncio.wait(self._returning)

    async def try_pop(
        self,
        request: PopRequest,
        verb: PopVerb = pop_now,
        admit: Callable[[], None] | None = None,
    ) -> Handout:
        """Pop what is there now; `verb` is run in place of `pop`.

        `admit` is called before each transaction, and raises if nothing may be handed out.
        """
        while True:
            if admit is not None:
                admit()
            answer = await self.hand_out(verb, request)
            if answer.runs:
                if self.broker.waiters.by_key:
                    self.broker.waiters.wake_next(request.wait_key)
                return answer
            if not answer.again:
                return answer

    async def hand_out(self, verb: Callable[..., H], *args: Any) -> H:
        """Run a verb that leases messages; if this is cancelled, they are released."""
        pending = PendingHandout(self, verb, args)
        try:
            return await pending.answered  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            # A second cancellation ends this wait, not the release.
            returned = pending.give_up()
            self._returning.add(returned)
            returned.add_done_callback(self._has_returned)
            await asyncio.wait([returned])  # this neither cancels the future nor raises its error
            raise

    def _has_returned(self, returned: "asyncio.Future[Any]") -> None:
        self._returning.discard(returned)
        if not returned.cancelled():
            returned.exception()  # if the pop failed, which is not to be logged

    def _submit(
        self, verb: Any, args: tuple[Any, ...], synced: bool, merge: Any
    ) -> "asyncio.Future[Any]":
        self.broker.check_open()
        future = self._loop.create_future()
        self.enqueue(Job(verb, args, synced, merge, partial(self.take, future)))
        return future

    def enqueue(self, job: Job) -> None:
        """Give a job to the writer, together with all others of this turn of the loop."""
        if not self._submitted:
            self._loop.call_soon(self._submit_all)
        self._submitted.append(job)

    def _submit_all(self) -> None:
        if self._flight is not None or not self._submitted:
            return  # they wait until it has landed, or it has landed with them
        jobs, self._submitted = self._submitted, []
        try:
            if not (self.leads and (self._run_at_once(jobs) or self._launch(jobs))):
                self.broker.writer.submit(jobs)
        except BaseException as error:  # closed, or no thread can be started
            for job in jobs:
                job.error = error
                assert job.on_answer is not None
                job.on_answer(job)
            if not isinstance(error, Exception):
                raise

    def _run_at_once(self, jobs: list[Job]) -> bool:
        """Run the jobs of a turn in this thread if they are brief and nothing holds it up."""
        if not all_brief(jobs):
            return False
        self._woken = True  # what is answered meanwhile is delivered below
        try:
            return self.broker.writer.run_at_once(jobs)
        finally:
            self._deliver()

    def _launch(self, jobs: list[Job]) -> bool:
        """Begin a transaction of the jobs of a turn, and collect others until it has landed."""
        count = count_plain_pushes(jobs)
        flight = self.broker.writer.launch(jobs[:count]) if count else None
        if flight is None:
            return False
        self._flight, self._flying = flight, jobs[:count]
        self._submitted = jobs[count:] + self._submitted
        flight.start()
        if not flight.wants:
            self._land()
            return True
        self._loop.add_reader(flight.fileno, self._fly, READ)
        if flight.wants & WRITE:
            self._loop.add_writer(flight.fileno, self._fly, WRITE)
        return True

    def _fly(self, ready: int) -> None:
        flight = self._flight
        if flight is None:
            return
        flight.step(ready)
        if not flight.wants & WRITE:
            self._loop.remove_writer(flight.fileno)
        if not flight.wants:
            self._land()

    def _land(self) -> None:
        """End the flight, begin the next one, and answer."""
        flight, jobs = self._flight, self._flying
        assert flight is not None
        self._loop.remove_reader(flight.fileno)
        self._flight, self._flying = None, []
        self._woken = True
        try:
            self.broker.writer.land(flight, jobs)
            if self._submitted:
                self._submit_all()
        finally:
            self._deliver()

    def future(self) -> "asyncio.Future[Any]":
        """Create a future of this loop, for `take`."""
        return self._loop.create_future()

    def take(self, future: "asyncio.Future[Any] | Callable[[Job], None]", job: Job) -> None:
        """Complete a future with the result of a job, or call back; called from any thread."""
        self._answered.append((future, job))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._answered:
            future, job = self._answered.popleft()
            if not isinstance(future, asyncio.Future):
                future(job)
            elif future.done():
                continue
            elif job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.answer)


class PendingHandout:
    """A verb in the writer's queue that leases messages.

    After `give_up` the thread that receives the answer releases the lease, because the event loop
    may be closed by then.
    """

    def __init__(
        self, loop_broker: LoopBroker, verb: Callable[..., Handout], args: tuple[Any, ...]
    ) -> None:
        self._on_loop = loop_broker
        self._writer = loop_broker.broker.writer
        self._job: Job | None = None
        self._given_up: asyncio.Future[Any] | None = None
        self.answered = loop_broker.future()
        loop_broker.broker.check_open()
        loop_broker.enqueue(Job(verb, args, False, None, self._answer))

    def give_up(self) -> "asyncio.Future[Any]":
        """Release the messages that it leased or will lease; return a future for that."""
        self._given_up = returned = self._on_loop.future()
        if self._job is not None:
            self._release(self._job, returned)
        return returned

    def _answer(self, job: Job) -> None:
        # Each thread sets its own field before it reads the other's, so that at least one of them
        # releases the lease. A second release has no effect.
        self._job = job
        job.on_answer = None  # else the two refer to each other, and keep what was handed out
        if self._given_up is None:
            self._on_loop.take(self.answered, job)
        if self._given_up is not None:
            self._release(job, self._given_up)

    def _release(self, job: Job, returned: "asyncio.Future[Any]") -> None:
        token = None if job.error is not None else job.answer.token
        if token is not None:
            with contextlib.suppress(SessionClosed):
                release: tuple[Any, ...] = token, [Mark(Verdict("release"))]
                answered = partial(self._on_loop.take, returned)
                return self._writer.submit([Job(settle, release, False, None, answered)])
        self._on_loop.take(returned, job)


class LoopSignal(Signal):
    """A signal that wakes a coroutine; any thread may set it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._woken: asyncio.Future[None] | None = None
        self.stopped = False

    def ring(self) -> None:
        super().ring()
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
            self._loop.call_soon_threadsafe(self._wake)

    def stop(self) -> None:
        """End the wait for good."""
        self.stopped = True
        self.ring()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def until(self, seconds: float) -> None:
        """Wait until it is set, for at most so many seconds; it needs no task."""
        if self.rung():
            return
        self._woken = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()


class AwaitedBroker:
    """A broker in this process for code that `spawn` runs: what it does is awaited on the loop.

    Verbs join the next group commit. Reads, upkeep, and verbs that work in slices run in threads.
    """

    local = True

    def __init__(self, broker: Verbs, on_loop: Callable[[], LoopBroker]) -> None:
        self.clock = broker.clock
        self.whole = broker.whole
        self.store = broker.store
        self._broker = broker
        self._on_loop = on_loop
        self._loops: dict[asyncio.AbstractEventLoop, LoopBroker] = {}

    @property
    def _on_this_loop(self) -> LoopBroker:
        """The broker on the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            for other in [other for other in self._loops if other.is_closed()]:
                self._loops.pop(other).close()
            self._loops[loop] = self._on_loop()
        return self._loops[loop]

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if verb in IN_SLICES:
            return self._thread(partial(self._broker.do, verb, synced, *args, **kwargs))
        if verb is ack_and_pop:
            return awaited(self._on_this_loop.hand_out(verb, *args))
        return awaited(self._on_this_loop.do(verb, synced, *args, **kwargs))

    def look(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread(partial(self._broker.look, verb, *args, **kwargs))

    def query(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread(partial(self._broker.query, verb, *args, **kwargs))

    def push(self, request: PushRequest) -> Answer:
        return awaited(self._on_this_loop.push(request))

    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        return awaited(self._on_this_loop.pop(request, wait))

    def upkeep(self) -> Upkeep:
        return self._thread(self._broker.upkeep)

    def close(self) -> None:
        """Let the threads end. The broker underneath belongs to its session."""
        for loop_broker in self._loops.values():
            loop_broker.close()

    async def returned(self) -> None:
        """Wait until all messages leased by cancelled pops are released."""
        await self._on_this_loop.returned()

    def _thread(self, call: Callable[[], T]) -> T:
        on_loop = self._on_this_loop
        on_loop.broker.check_open()
        return awaited(on_loop.thread(call))
