"""Group commit: whoever holds the writer runs every verb that waits at that moment, commits once,
and answers them all. Nobody waits for a timer.

Where a commit is not on disk yet, verbs that need it there share the next sync; others neither wait
for one nor for those who do.

A signal handler that raises does so in the main thread: after a call, at the start of a function, or
when a loop turns. So the main thread runs no verb but its own, and every step by which it leaves may
be done again.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from msgspec import Struct

from ..errors import (
    AckflowError,
    OutcomeUnknown,
    SessionClosed,
    StorageAway,
    StorageBusy,
    StorageFailed,
)
from .counters import Tally
from .tx import Tx

AIDES = 3  # one may sync, and one wait for a sync, while the third goes on
NOBODYS = (OutcomeUnknown, StorageAway, StorageBusy)  # errors that no verb of a group has caused
log = logging.getLogger("ackflow")
Verb = Callable[..., Any]  # of the transaction and the arguments it is given with


class Job(Struct, eq=False):
    """One verb on its way through the writer, and its answer."""

    verb: Verb
    args: tuple[Any, ...]
    synced: bool
    merge: Any = None
    answered: "Callable[[Job], None] | None" = None  # called when done, if no thread waits for it
    done: bool = False
    leads: bool = False
    gone: bool = False  # its thread does not wait for it any more
    aided: bool = False  # led by a thread of the writer's own: its own does not, or it has none
    duty: "list[Job] | None" = None  # what its thread is to sync, itself included
    needs: int = 0  # number up to which others' commits must be on disk before it is answered
    turn: "threading.Lock | None" = None  # held while it waits for another thread
    answer: Any = None
    error: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Whether it was done and is to be on disk before it is answered."""
        return self.synced and self.error is None


class Writes(Protocol):
    """What the writer needs of a store: run a body in one transaction, committed on return.

    `interrupted` is what a signal handler raised once the commit was done. `sync` brings what is
    committed to the disk, at least up to a number; without it a commit that asks for it is there.
    """

    interrupted: BaseException | None

    @property
    def sync(self) -> Callable[[int], None] | None: ...

    def transact(self, body: Callable[[Tx], None], synced: bool) -> Tx: ...


class Tells(Protocol):
    """Who is told of what was committed, under the writer's lock, and speaks of it outside of it."""

    @property
    def unsaid(self) -> Collection[object]: ...
    def hear(self, tally: Tally) -> None: ...
    def say(self) -> None: ...


class Writer:
    """Runs verbs in group transactions; `merged` runs neighbouring mergeable ones as one."""

    def __init__(
        self,
        store: Writes,
        merged: Callable[[Tx, Sequence[Any]], list[Any]],
        committed: Callable[[set[str]], None],
    ) -> None:
        self._store = store
        self._merged = merged
        self._committed = committed
        self._jobs: deque[Job] = deque()
        self._door = threading.Lock()
        self._busy = False
        self._turn = threading.Lock()
        self._held: list[Job] = []  # they wait for the end of a sync, to share the next one
        self._syncing: list[Job] | None = None
        self._disk = threading.Lock()  # taken while something committed has to be synced
        self._late: list[Job] = []  # done, without a thread, and what they show is not on disk yet
        self._awaited = False  # whether an aide is with those
        # Lead, sync these, look after the late ones, or end.
        self._summons: SimpleQueue[list[Job] | bool | None] = SimpleQueue()
        self._aides: list[threading.Thread] = []
        self._closing = False
        self.commits = 0
        self.verbs = 0
        self.telling: Tells | None = None

    def run(
        self, verb: Verb, args: tuple[Any, ...] = (), *, synced: bool, merge: Any = None
    ) -> Any:
        """Run one verb; the calling thread does the work of all that wait, or finds its own done.
        The main thread does its own alone, or finds it done."""
        job = Job(verb, args, synced, merge)
        try:
            with self._door:
                alone = not (self._busy or self._turn.locked() or (synced and self._syncing))
                if alone:
                    self._busy = job.leads = True
                else:
                    job.aided = threading.current_thread() is threading.main_thread()
                    self._enter(job)
            if alone:
                self._alone(job)
            elif job.turn is not None:
                job.turn.acquire()
        except BaseException:
            self._leave(job)
            raise
        if job.duty is not None:
            self._sync(job.duty)
        elif not job.done:
            self._lead(job)
        if job.needs:
            self._reach([job])
        if self.telling is not None and self.telling.unsaid:
            self.telling.say()
        if self._store.interrupted is not None:
            self._raise_interrupt()
        if job.error is not None:
            raise job.error
        return job.answer

    def submit(
        self,
        verb: Verb,
        args: tuple[Any, ...] = (),
        *,
        synced: bool,
        merge: Any = None,
        answered: Callable[[Job], None],
    ) -> None:
        """Run one verb without waiting for it; `answered` is called from another thread, and must
        neither block nor raise."""
        job = Job(verb, args, synced, merge, answered, aided=True)
        try:
            with self._door:
                self._enter(job)
        except BaseException:
            self._leave(job)
            raise

    def close(self) -> None:
        """Refuse what comes, and end the writer's own threads once they have led for all others."""
        with self._door:
            self._closing = True
        self._summons.put(False)
        for aide in self._aides:
            if aide is not threading.current_thread():
                aide.join()

    def _enter(self, job: Job) -> None:
        """Behind the door: queue a verb, which leads if nobody does."""
        if self._closing:
            raise SessionClosed()
        while job.aided and len(self._aides) < AIDES:
            aide = threading.Thread(target=self._assist, name="ackflow-writer", daemon=True)
            try:
                aide.start()
            except RuntimeError:  # the interpreter ends, and does without more threads
                if job.answered is not None and not self._aides:
                    raise
                job.aided = bool(self._aides)
                break
            self._aides.append(aide)
        if job.answered is None and (job.aided or self._busy or (job.synced and self._syncing)):
            job.turn = threading.Lock()
            job.turn.acquire()
        if job.synced and self._syncing:
            self._held.append(job)
            return
        self._jobs.append(job)
        if not self._busy:
            self._pass_on(None)

    def _assist(self) -> None:
        """Lead, or sync, for verbs whose threads do not; each summons is for one time."""
        while True:
            summons = self._summons.get()
            if summons is True:
                self._lead(None)
                if self.telling is not None and self.telling.unsaid:
                    self.telling.say()
            elif summons is None:
                self._answer_late()
            elif summons:
                self._sync(summons)
            else:
                self._summons.put(False)  # for the others: an interrupt may have left one unlisted
                with self._door:
                    busy = self._busy or self._awaited
                    if not (self._jobs or self._held or self._syncing or busy):
                        return
                time.sleep(0.001)  # the writer closes: who leads may still summon an aide

    def _alone(self, job: Job) -> None:
        """Lead where nobody else waits: what `_lead` does, in fewer steps."""
        with self._turn:
            try:
                self._tell(self._store.transact(partial(self._run_one, job), job.synced), 1)
            except BaseException as error:
                job.error = error
            job.done = True
            if job.synced and job.error is None and self._store.sync is not None:
                job.duty = [job]  # first: who is interrupted after the next step still syncs
                self._disk.acquire()
        self._resign(job)
        if job.duty is not None:
            self._sync(job.duty)
            job.duty = None

    def _resign(self, job: Job) -> None:
        """Let another lead, or nobody."""
        with self._door:
            if self._jobs:
                if job.duty is not None:
                    self._begin_sync(job.duty)
                self._pass_on(job)
                return
            if job.duty is not None:
                self._syncing = job.duty
            job.leads = self._busy = False

    def _lead(self, own: Job | None) -> None:
        """Run all that wait, then let go those that are done and the next one that leads."""
        group: list[Job] = []
        duty: list[Job] = []
        try:
            with self._turn:
                try:
                    self._run_waiting(group)
                finally:
                    if self._store.sync is not None:
                        duty = [job for job in group if job.waits]
                    if duty:
                        self._disk.acquire()
        finally:
            with self._door:
                if duty:
                    self._begin_sync(duty)
                self._pass_on(own)
            try:
                for job in group:
                    if not (duty and job.waits):
                        self._let_go(job)
            finally:
                if duty and not self._hand_over(own, duty):
                    self._sync(duty)

    def _pass_on(self, job: Job | None) -> None:
        """Behind the door: let the next one lead, if any waits, or the aide in its place."""
        following = self._jobs[0] if self._jobs else None
        # From here on no signal is handled before it is done.
        if job is not None:
            job.leads = False
        self._busy = following is not None
        if following is not None:
            following.leads = True
            if following.aided:
                self._summons.put(True)
            elif following.turn is not None:
                following.turn.release()

    def _begin_sync(self, duty: list[Job]) -> None:
        """Behind the door: from now on who needs a sync waits for the end of this one."""
        self._syncing = duty
        if self._jobs:
            kept = [job for job in self._jobs if not job.synced]
            held = [job for job in self._jobs if job.synced]
            self._jobs, self._held = deque(kept), self._held + held

    def _hand_over(self, own: Job | None, duty: list[Job]) -> bool:
        """Leave a sync to a thread that has to wait for it anyway, or to an aide, if the leader
        has not."""
        if own is None or own.waits:
            return False
        with self._door:
            for job in duty:
                if job.turn is not None and not job.gone and not job.aided:
                    job.duty = duty
                    job.turn.release()
                    return True
            if self._aides:
                self._summons.put(duty)
                return True
        return False

    def _sync(self, duty: list[Job]) -> None:
        """Bring what was committed to the disk, then let go those who waited for it."""
        try:
            self._sync_now()
        except AckflowError as error:
            for job in duty:
                job.error = error
        finally:
            with self._door:
                if self._syncing is duty:
                    self._jobs += self._held
                    self._held = []
                    self._syncing = None
                    self._disk.release()
                if self._jobs and not self._busy:
                    self._pass_on(None)
            for job in duty:
                if job.duty is None:
                    self._let_go(job)

    def _sync_now(self, number: int = 0) -> None:
        assert self._store.sync is not None
        while True:
            try:
                return self._store.sync(number)
            except AckflowError:
                raise
            except BaseException as signal:  # what is committed is done, whoever interrupts
                self._store.interrupted = signal

    def _reach(self, jobs: list[Job]) -> None:
        """Wait until what jobs show is on disk: for the running sync, or for one of their own."""
        try:
            self._sync_now(max(job.needs for job in jobs))
        except AckflowError as error:
            for job in jobs:
                job.error = job.error or error

    def _answer_late(self) -> None:
        while True:
            with self._door:
                late, self._late = self._late, []
                self._awaited = bool(late)
            if not late:
                return
            self._reach(late)
            for job in late:
                assert job.answered is not None
                job.answered(job)

    def _let_go(self, job: Job) -> None:
        if job.turn is not None:
            job.turn.release()
        elif job.answered is not None and job.needs:
            with self._door:
                self._late.append(job)
                if not self._awaited:
                    self._awaited = True
                    self._summons.put(None)
        elif job.answered is not None:
            job.answered(job)

    def _raise_interrupt(self) -> None:
        interrupted = self._store.interrupted
        if interrupted is not None and threading.current_thread() is threading.main_thread():
            self._store.interrupted = None
            raise interrupted

    def _leave(self, job: Job) -> None:
        """Withdraw, whoever interrupts again: others may wait for it."""
        while True:
            try:
                return self._withdraw(job)
            except BaseException:
                continue

    def _withdraw(self, job: Job) -> None:
        """A thread was interrupted: its verb is not run, unless it already is, and others go on."""
        with self._door:
            job.gone = True
            if job in self._held:
                self._held.remove(job)
            elif job in self._jobs:
                self._jobs.remove(job)
        if job.leads and not job.aided:
            self._resign(job)
        if job.duty is not None:
            self._sync(job.duty)
            job.duty = None

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep every verb out, for work on the writing connection itself."""
        with self._turn, self._disk:
            yield

    def _run_waiting(self, group: list[Job]) -> None:
        """Run everything that waits, and gather it in `group` as it becomes done."""
        with self._door:
            group += self._jobs
            self._jobs.clear()
        if not group:
            return  # who was to be led has withdrawn
        try:
            self._commit(group)
        except BaseException as error:
            if len(group) == 1 or isinstance(error, NOBODYS):
                for job in group:
                    job.error = error
                return
            self._one_by_one(group)
            if not isinstance(error, Exception):
                raise
        finally:
            for job in group:
                job.done = True

    def _one_by_one(self, group: list[Job]) -> None:
        """An unexpected error undid the group: find out whose it was."""
        for job in group:
            job.answer = job.error = None
            try:
                self._commit([job])
            except BaseException as error:
                job.error = error

    def _commit(self, group: list[Job]) -> None:
        synced = any(job.synced for job in group)
        self._tell(self._store.transact(partial(self._run, group), synced), len(group))

    def _tell(self, tx: Tx, verbs: int) -> None:
        """Tell what a transaction that is committed has done; what goes wrong here undoes nothing."""
        self.commits += 1
        self.verbs += verbs
        try:
            if self.telling is not None and (tx.tally.acked or tx.tally.died):
                self.telling.hear(tx.tally)
            if tx.touched:
                self._committed(tx.touched)
        except Exception:
            log.exception("a commit could not be told to all who wait for it")

    def _run(self, group: list[Job], tx: Tx) -> None:
        index = 0
        while index < len(group):
            job = group[index]
            index += 1
            if job.merge is None:
                self._run_one(job, tx)
                continue
            run = [job]
            while index < len(group) and group[index].merge is not None:
                run.append(group[index])
                index += 1
            self._run_merged(run, tx)

    def _run_merged(self, run: list[Job], tx: Tx) -> None:
        for job, answer in zip(run, self._merged(tx, [job.merge for job in run]), strict=True):
            job.error = answer if isinstance(answer, AckflowError) else None
            job.answer = answer

    def _run_one(self, job: Job, tx: Tx) -> None:
        if job.merge is not None:
            self._run_merged([job], tx)
            return
        job.error = None  # a store may run it again
        try:
            job.answer = job.verb(tx, *job.args)
        except StorageFailed:
            raise  # no refusal: it may come after the first write
        except AckflowError as refusal:
            job.error = refusal
        if tx.needs:
            job.needs, tx.needs = tx.needs, 0
