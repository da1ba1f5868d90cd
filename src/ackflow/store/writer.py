"""Group commit: whoever holds the writer runs every verb that waits at that moment, commits once,
and answers them all. Nobody waits for a timer.

Where a commit is not on disk yet, verbs that need it there share the next sync; others neither wait
for one nor for those who do.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from ..errors import AckflowError, OutcomeUnknown, StorageFailed
from .tally import Tally
from .tx import Tx

AIDES = 2  # one may sync while the other goes on
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
    duty: "list[Job] | None" = None  # what its thread is to sync, itself included
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
    committed to the disk; without it a commit that asks for it is there.
    """

    interrupted: BaseException | None

    @property
    def sync(self) -> Callable[[], None] | None: ...

    def transact(self, body: Callable[[Tx], None], synced: bool) -> set[str]: ...


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
        self._syncing = False
        self._disk = threading.Lock()  # taken while something committed has to be synced
        self._called = threading.Semaphore(0)
        self._summons = 0  # calls that no aide has answered
        self._aides: list[threading.Thread] = []
        self.commits = 0
        self.verbs = 0
        self.told: Callable[[Tally], None] | None = None
        self._tally = Tally()

    def run(
        self, verb: Verb, args: tuple[Any, ...] = (), *, synced: bool, merge: Any = None
    ) -> Any:
        """Run one verb; the calling thread does the work of all that wait, or finds its own done."""
        job = Job(verb, args, synced, merge)
        try:
            with self._door:
                alone = not (self._busy or self._turn.locked() or (synced and self._syncing))
                if alone:
                    self._busy = job.leads = True
                elif not self._enter(job):
                    job.turn = threading.Lock()
                    job.turn.acquire()
            if alone:
                self._alone(job)
            elif job.turn is not None:
                job.turn.acquire()
        except BaseException:
            self._withdraw(job)
            if job.duty:
                self._sync(job.duty)
            raise
        if job.duty:
            self._sync(job.duty)
        elif not job.done:
            self._lead(job)
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
        job = Job(verb, args, synced, merge, answered)
        with self._door:
            leads = self._enter(job)
        if leads:
            self._call_aide()

    def close(self) -> None:
        """End the threads that run submitted verbs, once those are done."""
        self._called.release(AIDES)
        for aide in self._aides:
            if aide is not threading.current_thread():
                aide.join()

    def _enter(self, job: Job) -> bool:
        """Queue a verb, behind the door; answers whether it leads."""
        if self._syncing and job.synced:
            self._held.append(job)
            return False
        self._jobs.append(job)
        job.leads, self._busy = not self._busy, True
        return job.leads

    def _alone(self, job: Job) -> None:
        """Lead where nobody else waits: what `_lead` does, in fewer steps."""
        with self._turn:
            self._commit_one(job)
            job.done = True
            if job.synced and job.error is None and self._store.sync is not None:
                job.duty = [job]  # first: who is interrupted after the next step still syncs
                self._disk.acquire()
        self._resign(job)
        duty, job.duty = job.duty, None
        if duty is not None:
            self._sync(duty)

    def _resign(self, job: Job) -> None:
        """Let another lead, or nobody; whom a signal kept from it may do it again."""
        following = None
        with self._door:
            if job.duty is not None:
                self._begin_sync()
            job.leads = self._busy = False
            if self._jobs:
                following = self._choose()
        if following is not None:
            self._pass_on(following)

    def _call_aide(self) -> None:
        """Let a thread of the writer's own lead, for a verb that brought none."""
        with self._door:
            self._summons += 1
            if len(self._aides) < AIDES:
                aide = threading.Thread(target=self._assist, name="ackflow-writer", daemon=True)
                self._aides.append(aide)
                aide.start()
        self._called.release()

    def _assist(self) -> None:
        while True:
            self._called.acquire()
            with self._door:
                summoned = self._summons > 0
                self._summons -= summoned
                waiting = bool(self._jobs or self._held)
            if summoned:
                self._lead(None)
            elif waiting:  # the writer closes: who leads may still summon an aide
                time.sleep(0.001)
                self._called.release()
            else:
                return

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
                    self._begin_sync()
                following = self._choose()
            try:
                if following is not None:
                    self._pass_on(following)
                self._let_go([job for job in group if not job.waits] if duty else group)
            finally:
                if duty and not self._hand_over(own, duty):
                    self._sync(duty)
        self._raise_interrupt()

    def _begin_sync(self) -> None:
        """Behind the door: from now on who needs a sync waits for the end of this one."""
        self._syncing = True
        if self._jobs:
            self._held += [job for job in self._jobs if job.synced]
            self._jobs = deque(job for job in self._jobs if not job.synced)

    def _hand_over(self, own: Job | None, duty: list[Job]) -> bool:
        """Leave a sync to a thread that has to wait for it anyway, if the leader has not."""
        if own is None or own.waits:
            return False
        with self._door:
            for job in duty:
                if job.turn is not None and not job.gone:
                    job.duty = duty
                    job.turn.release()
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
            self._disk.release()
            with self._door:
                self._syncing = False
                if self._held:
                    self._jobs += self._held
                    self._held.clear()
                following = None if self._busy or not self._jobs else self._choose()
            if following is not None:
                self._pass_on(following)
            self._let_go([job for job in duty if not job.duty])

    def _sync_now(self) -> None:
        assert self._store.sync is not None
        while True:
            try:
                return self._store.sync()
            except AckflowError:
                raise
            except BaseException as signal:  # what is committed is done, whoever interrupts
                self._store.interrupted = signal

    def _let_go(self, group: list[Job]) -> None:
        for job in group:
            if job.turn is not None:
                job.turn.release()
            elif job.answered is not None:
                job.answered(job)

    def _raise_interrupt(self) -> None:
        interrupted = self._store.interrupted
        if interrupted is not None and threading.current_thread() is threading.main_thread():
            self._store.interrupted = None
            raise interrupted

    def _pass_on(self, job: Job) -> None:
        """Let the one that leads next go on, or the aide in its place."""
        if job.turn is not None:
            job.turn.release()
        elif job.answered is not None:
            self._call_aide()

    def _choose(self) -> Job | None:
        following = self._jobs[0] if self._jobs else None
        self._busy = following is not None
        if following is not None:
            following.leads = True
        return following

    def _withdraw(self, job: Job) -> None:
        """A thread was interrupted while it waited: its verb is not run, unless it already is."""
        with self._door:
            job.gone = True
            if job in self._held:
                self._held.remove(job)
            elif job in self._jobs:
                self._jobs.remove(job)
            elif job.turn is not None:
                return  # it is run, and who does so resigns
        if job.leads:
            self._resign(job)

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
        try:
            self._commit(group)
        except BaseException as error:
            if len(group) == 1 or isinstance(error, OutcomeUnknown):
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

    def _commit_one(self, job: Job) -> None:
        try:
            self._tell(self._store.transact(partial(self._run_one, job), job.synced), 1)
        except BaseException as error:
            job.error = error

    def _tell(self, touched: set[str], verbs: int) -> None:
        self.commits += 1
        self.verbs += verbs
        tally = self._tally
        if self.told is not None and (tally.acked or tally.died):
            self.told(tally)
        if touched:
            self._committed(touched)

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
        self._tally = tx.tally
        for job, answer in zip(run, self._merged(tx, [job.merge for job in run]), strict=True):
            if isinstance(answer, AckflowError):
                job.error = answer
            else:
                job.answer = answer

    def _run_one(self, job: Job, tx: Tx) -> None:
        if job.merge is not None:
            self._run_merged([job], tx)
            return
        self._tally = tx.tally
        try:
            job.answer = job.verb(tx, *job.args)
        except StorageFailed:
            raise  # no refusal: it may come after the first write
        except AckflowError as refusal:
            job.error = refusal
