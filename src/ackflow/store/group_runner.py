"""The transactions of the writer: runs the verbs of a group, and isolates one that fails it.

`LoopLeading` is for an event loop, which must not wait. On SQLite the loop runs a group and syncs it,
while fsyncs are short. On PostgreSQL it sends a group, and serves its clients until the server has
answered; what arrives meanwhile is the next group.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from ..errors import AckflowError, OutcomeUnknown, StorageAway, StorageBusy, StorageFailed
from .commit_pause import LoopBudget
from .job import UNASKED, Job, Verb, fences_of
from .protocol import (
    EVERYTHING,
    CommitObserver,
    Flight,
    Reach,
    TransactionalStore,
    WiderReach,
)
from .tx import Tx

MAX_SPLITS = 4  # how often a group is run again without the jobs that failed it
STORE_ERRORS = (OutcomeUnknown, StorageAway, StorageBusy)  # not caused by a verb of the group
log = logging.getLogger("ackflow")
RunMerged = Callable[[Tx, Sequence[Any]], list[Any]]
ReachOf = Callable[[Verb, tuple[Any, ...], Any], Reach | None]


class GroupRunner:
    """Runs jobs in transactions and leaves their answers or errors in them.

    `run_merged` runs neighbouring mergeable verbs as one. `reach_of`: what a job reads and changes,
    by its verb, arguments and `merge`. Used by one thread at a time.
    """

    def __init__(
        self,
        store: TransactionalStore,
        run_merged: RunMerged,
        on_commit: Callable[[set[str]], None],
        reach_of: ReachOf | None,
    ) -> None:
        self._store = store
        self._reach_of = reach_of if store.by_queue else None
        self._run_merged_verbs = run_merged
        self._on_commit = on_commit
        self._running: list[Job] = []  # the jobs that a group transaction runs at the moment
        self.commits = 0
        self.verbs = 0
        self.observer: CommitObserver | None = None

    def run_alone(self, job: Job) -> None:
        """Run one job: the same as `run`, in fewer steps."""
        try:
            tx = self._transact([job], partial(self._run_only, job), job.synced)
            self._notify_committed(tx, 1)
        except BaseException as error:
            job.error = error

    def run(self, group: list[Job]) -> None:
        """Run a group in one transaction; raises what is no Exception, such as an interrupt."""
        try:
            self._commit(group)
        except BaseException as error:
            if len(group) == 1 or isinstance(error, STORE_ERRORS):
                for job in group:
                    job.error = error
                return
            self._split(group)
            if not isinstance(error, Exception):
                raise

    def run_at_once(self, group: list[Job]) -> bool:
        """Run a group in one transaction; False, and nothing is done, if that would wait or failed.

        Another run of the group then finds the job that failed it.
        """
        assert self._store.transact_at_once is not None
        synced = any(job.synced for job in group)
        try:
            tx = self._store.transact_at_once(partial(self._run_group, group), synced)
        except OutcomeUnknown as error:
            for job in group:
                job.error = error
            return True
        except Exception:
            tx = None
        if tx is None:
            self.reset(group)
            return False
        self._notify_committed(tx, len(group))
        return True

    def launch(self, group: list[Job]) -> Flight | None:
        """Begin a transaction of a group that an event loop follows, or do nothing."""
        assert self._store.launch is not None
        self._find_reaches(group)
        flight = self._store.launch(partial(self._run_group, group), [job.reach for job in group])
        if flight is None:
            self.reset(group)
        return flight

    def landed(self, group: list[Job], tx: Tx) -> None:
        """Note that such a transaction was committed."""
        for job in group:
            job.commit, job.on_disk = tx.number, tx.on_disk
            job.sync_number = 0
        self._notify_committed(tx, len(group))

    def _find_reaches(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.reach is UNASKED and self._reach_of is not None:
                job.reach = self._reach_of(job.verb, job.args, job.merge)

    def _split(self, group: list[Job]) -> None:
        """Run a group again after one of its jobs failed it: that job alone, the others together.

        A second failure in the rest is handled likewise; after a few, each job runs alone.
        """
        rest = group
        for _ in range(MAX_SPLITS):
            failed, self._running = self._running, []
            if not failed or len(failed) == len(rest):
                break
            rest = [job for job in rest if job not in failed]
            self.run_one_by_one(failed)
            try:
                self.reset(rest)
                return self._commit(rest)
            except BaseException as error:
                if isinstance(error, STORE_ERRORS):
                    for job in rest:
                        job.error = error
                    return None
        return self.run_one_by_one(rest)

    def reset(self, group: list[Job]) -> None:
        for job in group:
            job.answer = job.error = None

    def run_one_by_one(self, group: list[Job]) -> None:
        """Run each job of a group in a transaction of its own."""
        for job in group:
            self.reset([job])
            try:
                self._commit([job])
            except BaseException as error:
                job.error = error

    def _commit(self, group: list[Job]) -> None:
        synced = any(job.synced for job in group)
        tx = self._transact(group, partial(self._run_group, group), synced)
        self._notify_committed(tx, len(group))

    def _transact(self, jobs: list[Job], body: Callable[[Tx], None], synced: bool) -> Tx:
        if self._reach_of is None:
            return self._store.transact(body, synced)
        self._find_reaches(jobs)
        while True:
            try:
                tx = self._store.transact(body, synced, [job.reach for job in jobs])
                break
            except WiderReach:
                for job in self._running:
                    job.reach = EVERYTHING
        for job in jobs:
            job.commit, job.on_disk = tx.number, tx.on_disk
        return tx

    def _admitted(self, group: list[Job], tx: Tx) -> list[Job]:
        """Return the jobs that may run in a transaction, those with the same reach together."""
        for job in group:
            job.postponed = not tx.admits(job.reach)
        return sorted((job for job in group if not job.postponed), key=fences_of)

    def _notify_committed(self, tx: Tx, verbs: int) -> None:
        """Count and report a committed transaction; an error here does not undo it."""
        self.commits += 1
        self.verbs += verbs
        try:
            if self.observer is not None and (tx.tally.acked or tx.tally.died):
                self.observer.record(tx.tally)
            if tx.touched:
                self._on_commit(tx.touched)
        except Exception:
            log.exception("a commit observer failed")

    def _run_group(self, group: list[Job], tx: Tx) -> None:
        if self._reach_of is not None:
            group = self._admitted(group, tx)
        tx.collects = len(group) > 1
        index = 0
        while index < len(group):
            job = group[index]
            index += 1
            self._running = [job]
            tx.enter(job.reach)
            if job.merge is None:
                self._run_verb(job, tx)
                continue
            run = [job]
            while index < len(group) and self._merges(job, group[index]):
                run.append(group[index])
                index += 1
            self._running = run
            self._run_merged(run, tx)
        self._running = []  # what fails from here on is the commit

    def _merges(self, job: Job, other: Job) -> bool:
        """Return whether a job may run as one with a mergeable one before it."""
        return other.merge is not None and (
            self._reach_of is None or fences_of(other) == fences_of(job)
        )

    def _run_only(self, job: Job, tx: Tx) -> None:
        tx.collects = False  # one verb has nothing to collect
        self._running = [job]
        tx.enter(job.reach)
        self._run_verb(job, tx)

    def _run_merged(self, jobs: list[Job], tx: Tx) -> None:
        answers = self._run_merged_verbs(tx, [job.merge for job in jobs])
        for job, answer in zip(jobs, answers, strict=True):
            job.error = answer if isinstance(answer, AckflowError) else None
            job.answer = answer

    def _run_verb(self, job: Job, tx: Tx) -> None:
        if job.merge is not None:
            self._run_merged([job], tx)
            return
        job.error = None  # a store may run it again
        try:
            job.answer = job.verb(tx, *job.args)
        except StorageFailed:
            raise  # not a refusal: the verb may have written before it failed
        except AckflowError as refusal:
            job.error = refusal
        if tx.sync_number:
            job.sync_number, tx.sync_number = tx.sync_number, 0


class LoopLeading:
    """The part of the writer that an event loop uses; group_commit.py has the locks and states."""

    _store: TransactionalStore
    _runner: GroupRunner
    _mutex: threading.Lock
    _queue: deque[Job]
    _has_leader: bool
    _commit_lock: threading.Lock
    _sync_lock: threading.Lock
    _budget: LoopBudget
    _syncing: list[Job] | None
    _deferred: list[Job]
    _unsynced_served: bool
    _helper_work: SimpleQueue[Callable[[], None] | None]
    _helpers: list[threading.Thread]
    _closing: bool

    def run_at_once(self, jobs: list[Job]) -> bool:
        """Run jobs in the calling thread, which must not wait; False, and nothing is done, if it
        would wait for another thread or process, a checkpoint, or an fsync that may take long.

        For an event loop. A signal handler that raises must not run in its thread.
        """
        if self._store.sync is None or self._store.transact_at_once is None:
            return False
        if not self._helpers:  # they answer what shows messages of others that are not on disk yet
            return False
        if not self._budget.allows() or not self._commit_lock.acquire(blocking=False):
            return False
        try:
            if not self._sync_lock.acquire(blocking=False):
                return False
            try:
                if not self._run_at_once(jobs):
                    return False
            finally:
                self._sync_lock.release()
        finally:
            self._commit_lock.release()
        for job in jobs:
            self._deliver(job)
        if self._runner.observer is not None and self._runner.observer.pending:
            self._runner.observer.log_pending()
        return True

    def _takes_lead(self) -> bool:
        """Lead, if nothing waits. Called under `_commit_lock` and `_sync_lock`."""
        with self._mutex:
            waiting = self._queue or self._deferred or self._syncing or self._unsynced_served
            if self._has_leader or waiting or self._closing:
                return False
            self._has_leader = True
        return True

    def _run_at_once(self, jobs: list[Job]) -> bool:
        """Lead a group of these jobs, and sync it. Called under `_commit_lock` and `_sync_lock`."""
        started = time.monotonic()
        if not self._takes_lead():
            return False
        try:
            if not self._runner.run_at_once(jobs):
                return False
            batch = [job for job in jobs if job.awaits_sync]
            if batch:
                try:
                    self._sync_store()
                except AckflowError as error:
                    for job in batch:
                        job.error = error
                else:  # all that was committed before is on disk now
                    for job in jobs:
                        job.sync_number = 0
            for job in jobs:
                job.done = True
            return True
        finally:
            self._budget.ran(time.monotonic() - started)
            with self._mutex:
                self._promote_next(None)

    def launch(self, jobs: list[Job]) -> Flight | None:
        """Begin a transaction of jobs that must be synced, and leave the event loop that calls to
        follow it; None, and nothing is done, if it would wait before that.

        Until `land`, no other verb runs.
        """
        if self._store.launch is None or not self._helpers:
            return None
        if not self._commit_lock.acquire(blocking=False):
            return None
        flight = None
        try:
            if self._sync_lock.acquire(blocking=False):
                try:
                    flight = self._launch(jobs)
                finally:
                    if flight is None:
                        self._sync_lock.release()
        finally:
            if flight is None:
                self._commit_lock.release()
        return flight

    def _launch(self, jobs: list[Job]) -> Flight | None:
        """Begin a transaction of a group. Called under `_commit_lock` and `_sync_lock`."""
        if not self._takes_lead():
            return None
        flight = None
        try:
            flight = self._runner.launch(jobs)
        finally:
            if flight is None:
                with self._mutex:
                    self._promote_next(None)
        return flight

    def land(self, flight: Flight, jobs: list[Job]) -> None:
        """End a flight, and answer its jobs; after an error, in another thread."""
        tx = flight.land()
        if tx is None:
            self._helper_work.put(partial(self._resolve, flight, jobs))
        else:
            self._landed(jobs, tx)

    def _resolve(self, flight: Flight, jobs: list[Job]) -> None:
        """End a flight after an error; jobs that were not committed are run again."""
        try:
            tx = flight.resolve()
        except OutcomeUnknown as error:
            for job in jobs:
                job.error = error
            self._landed(jobs, None)
        except BaseException:
            self._runner.reset(jobs)
            for job in jobs:
                job.led_by_helper = True
            with self._mutex:
                self._queue.extendleft(reversed(jobs))
            self._landed([], None)
        else:
            self._landed(jobs, tx)

    def _landed(self, jobs: list[Job], tx: Tx | None) -> None:
        if tx is not None:
            self._runner.landed(jobs, tx)
        for job in jobs:
            job.done = True
        batch = [] if tx is None or tx.on_disk else [job for job in jobs if job.awaits_sync]
        if not batch:
            self._sync_lock.release()
        self._commit_lock.release()
        with self._mutex:
            if batch:
                self._begin_sync(batch)
            self._promote_next(None)
        if batch:
            self._sync(batch)
        for job in jobs:
            if job not in batch:
                self._deliver(job)
        if self._runner.observer is not None and self._runner.observer.pending:
            self._runner.observer.log_pending()

    # what the writer has

    def _deliver(self, job: Job) -> None:
        raise NotImplementedError

    def _promote_next(self, job: Job | None) -> None:
        raise NotImplementedError

    def _begin_sync(self, batch: list[Job]) -> None:
        raise NotImplementedError

    def _sync(self, batch: list[Job]) -> None:
        raise NotImplementedError

    def _sync_store(self, number: int = 0) -> None:
        raise NotImplementedError
