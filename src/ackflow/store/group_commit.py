"""Group commit: one thread runs every verb that is queued in one transaction and commits once.

There is no writer thread and no timer. A calling thread that finds the writer idle becomes the
leader: it runs its own verb and every verb queued by then, commits, and promotes the first of those
queued meanwhile. A thread that finds a leader queues its verb and waits. Why this and not a thread
of its own: docs/decisions/group-commit.md. The transactions themselves: group_runner.

An event loop that gives its verbs to `submit` gets the answers from another thread. While fsyncs are
short it runs them itself, by `run_at_once`, if the writer is idle and nothing would make it wait.

Where a commit is fsynced separately (SQLite in mode `acks`), verbs that must be on disk share the
next fsync; pops and acks neither wait for one nor for the verbs that do.

The states of a Job:

    run(), submit()
       |
       |-- the writer is idle ---------------------------------> LEADING
       |                                                            ^
       |-- a leader runs ------> QUEUED -- first in the queue ------|
       |                         ^   |                              |
       |                         |   |-- another leader takes it ---|
       |         that sync ended |   |                              | one transaction
       |                         |   `-- its thread was             | for all queued
       `-- it must be synced, -> DEFERRED     interrupted           | jobs
           and a sync runs         |              |                 v
                                   `--------------+-> WITHDRAWN   DONE (committed or failed)
                                                      (not run)     |
                SYNCING <---- must be synced, or shows -------------|
                   |          messages that are not on disk         | otherwise
                   | fsync ended                                    v
                   `-------------------------------------------> ANSWERED

Three locks, always taken in this order: `_commit_lock` while a leader runs a transaction,
`_sync_lock` from a commit until it is fsynced, `_mutex` for a few steps around the fields below.

A signal handler that raises does so in the main thread, at the points where CPython checks for
signals: after a call, at the start of a function, or when a loop repeats. Therefore the main thread
runs no verb but its own (helper threads lead in its place), and each step by which it leaves the
writer can be repeated.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from ..errors import AckflowError, SessionClosed
from .commit_pause import CommitPause, LoopBudget
from .group_runner import GroupRunner, LoopLeading, ReachOf, RunMerged
from .job import Job, Verb, count_calls
from .protocol import CommitLost, CommitObserver, TransactionalStore

HELPERS = 3  # one may sync and one wait for a sync while the third leads


class Writer(LoopLeading):
    """Runs verbs in group transactions; `run_merged` runs neighbouring mergeable ones as one."""

    def __init__(
        self,
        store: TransactionalStore,
        run_merged: RunMerged,
        on_commit: Callable[[set[str]], None],
        reach_of: ReachOf | None = None,
    ) -> None:
        """The arguments are those of GroupRunner."""
        self._store = store
        self._runner = GroupRunner(store, run_merged, on_commit, reach_of)
        self._mutex = threading.Lock()
        self._queue: deque[Job] = deque()
        self._has_leader = False
        self._commit_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._pause = CommitPause()
        self._budget = LoopBudget()
        self._syncing: list[Job] | None = None  # the batch of the running sync
        self._deferred: list[Job] = []  # they join the queue, and the next sync, when it ends
        self._unsynced: list[Job] = []  # done, without a thread, and show messages not on disk yet
        self._unsynced_served = False  # whether a helper waits for their sync
        self._helper_work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: stop
        self._helpers: list[threading.Thread] = []
        self._closing = False

    @property
    def commits(self) -> int:
        return self._runner.commits

    @property
    def verbs(self) -> int:
        return self._runner.verbs

    def observe(self, observer: CommitObserver) -> None:
        self._runner.observer = observer

    def run(
        self, verb: Verb, args: tuple[Any, ...] = (), *, synced: bool, merge: Any = None
    ) -> Any:
        """Run one verb and return its answer; the calling thread may lead a group for it."""
        job = Job(verb, args, synced, merge)
        try:
            with self._mutex:
                alone = not (
                    self._has_leader or self._commit_lock.locked() or (synced and self._syncing)
                )
                if alone:
                    self._has_leader = job.leading = True
                else:
                    job.led_by_helper = threading.current_thread() is threading.main_thread()
                    self._enqueue(job)
            if alone:
                self._run_alone(job)
            elif job.wakeup is not None:
                job.wakeup.acquire()
        except BaseException:
            self._abandon(job)
            raise
        if job.sync_batch is not None:
            self._sync(job.sync_batch)
        elif not job.done:
            self._lead(job)
        if job.sync_number:
            self._wait_until_synced([job])
        if self._runner.observer is not None and self._runner.observer.pending:
            self._runner.observer.log_pending()
        if self._store.interrupted is not None:
            self._raise_interrupt()
        if job.error is not None:
            raise job.error
        return job.answer

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run jobs without waiting for them; each has an `on_answer`.

        It is called from another thread, and must neither block nor raise.
        """
        try:
            with self._mutex:
                self._enqueue_all(jobs)
        except BaseException:
            for job in jobs:
                self._abandon(job)
            raise

    def close(self) -> None:
        """Refuse new verbs, and stop the helper threads once every queued verb is answered."""
        with self._mutex:
            self._closing = True
        self._helper_work.put(None)
        for helper in self._helpers:
            if helper is not threading.current_thread():
                helper.join()

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep every verb out, for work on the writing connection itself."""
        with self._commit_lock, self._sync_lock:
            yield

    # leading

    def _enqueue(self, job: Job) -> None:
        """Queue a verb, and promote it if there is no leader. Called under `_mutex`."""
        if self._closing:
            raise SessionClosed()
        while job.led_by_helper and len(self._helpers) < HELPERS:
            helper = threading.Thread(target=self._help, name="ackflow-writer", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # the interpreter is shutting down and starts no more threads
                if job.on_answer is not None and not self._helpers:
                    raise
                job.led_by_helper = bool(self._helpers)
                break
            self._helpers.append(helper)
        must_defer = job.synced and self._syncing
        if job.on_answer is None and (job.led_by_helper or self._has_leader or must_defer):
            job.wakeup = threading.Lock()
            job.wakeup.acquire()
        if must_defer:
            self._deferred.append(job)
            return
        self._queue.append(job)
        if not self._has_leader:
            self._promote_next(None)

    def _enqueue_all(self, jobs: Sequence[Job]) -> None:
        """Queue verbs without a thread of their own, promote the first. Called under `_mutex`."""
        jobs[0].led_by_helper = True
        self._enqueue(jobs[0])  # starts the helpers
        for job in jobs[1:]:
            job.led_by_helper = True
            (self._deferred if job.synced and self._syncing else self._queue).append(job)
        if self._queue and not self._has_leader:
            self._promote_next(None)

    def _run_alone(self, job: Job) -> None:
        """Lead where nothing else is queued: the same as `_lead`, in fewer steps."""
        with self._commit_lock:
            self._runner.run_alone(job)
            job.done = True
            if job.awaits_sync and self._store.sync is not None:
                # First: a thread that is interrupted after the next step still syncs.
                job.sync_batch = [job]
                self._sync_lock.acquire()
        self._stop_leading(job)
        if job.sync_batch is not None:
            self._sync(job.sync_batch)
            job.sync_batch = None

    def _stop_leading(self, job: Job) -> None:
        with self._mutex:
            if self._queue:
                if job.sync_batch is not None:
                    self._begin_sync(job.sync_batch)
                self._promote_next(job)
                return
            if job.sync_batch is not None:
                self._syncing = job.sync_batch
            job.leading = self._has_leader = False

    def _lead(self, own: Job | None) -> None:
        """Run all queued jobs, promote the next leader, and answer the jobs that are done."""
        group: list[Job] = []
        batch: list[Job] = []
        try:
            with self._commit_lock:
                try:
                    self._run_queued(group)
                finally:
                    if self._store.sync is not None:
                        batch = [job for job in group if job.awaits_sync]
                    if batch:
                        self._sync_lock.acquire()
        finally:
            with self._mutex:
                if batch:
                    self._begin_sync(batch)
                self._promote_next(own)
            try:
                for job in group:
                    if not (batch and job.awaits_sync):
                        self._deliver(job)
            finally:
                if batch and not self._delegate_sync(own, batch):
                    self._sync(batch)

    def _promote_next(self, job: Job | None) -> None:
        """Make the first queued job the leader, in place of `job`. Called under `_mutex`."""
        following = self._queue[0] if self._queue else None
        # From here to the end CPython checks for no signal.
        if job is not None:
            job.leading = False
        self._has_leader = following is not None
        if following is not None:
            following.leading = True
            if following.led_by_helper:
                self._helper_work.put(self._lead_queued)
            elif following.wakeup is not None:
                following.wakeup.release()

    # helper threads

    def _help(self) -> None:
        """Body of a helper thread: lead or sync for jobs whose own threads do not."""
        while True:
            work = self._helper_work.get()
            if work is not None:
                work()
                continue
            # For the other helpers: an interrupted thread may have started one it did not list.
            self._helper_work.put(None)
            with self._mutex:
                busy = self._has_leader or self._unsynced_served
                if not (self._queue or self._deferred or self._syncing or busy):
                    return
            time.sleep(0.001)  # the writer is closing, and a leader may still need a helper

    def _lead_queued(self) -> None:
        self._lead(None)
        if self._runner.observer is not None and self._runner.observer.pending:
            self._runner.observer.log_pending()

    def _answer_unsynced(self) -> None:
        """Answer jobs without a thread once the messages they show are on disk."""
        while True:
            with self._mutex:
                jobs, self._unsynced = self._unsynced, []
                self._unsynced_served = bool(jobs)
            if not jobs:
                return
            self._wait_until_synced(jobs)
            for job in jobs:
                assert job.on_answer is not None
                job.on_answer(job)

    # syncing

    def _begin_sync(self, batch: list[Job]) -> None:
        """Defer jobs that need a sync to the end of this one, but for the next leader.

        Called under `_mutex`. The next leader may be on its way already, if a lost commit is repeated.
        """
        self._syncing = batch
        if self._queue:
            kept = [job for job in self._queue if not job.synced or job.leading]
            deferred = [job for job in self._queue if job.synced and not job.leading]
            self._queue, self._deferred = deque(kept), self._deferred + deferred

    def _delegate_sync(self, own: Job | None, batch: list[Job]) -> bool:
        """Leave the sync to a thread that waits for it anyway, or to a helper.

        False when the leader waits for it itself, or no other thread can do it.
        """
        if own is None or own.awaits_sync:
            return False
        with self._mutex:
            for job in batch:
                if job.wakeup is not None and not job.abandoned and not job.led_by_helper:
                    job.sync_batch = batch
                    job.wakeup.release()
                    return True
            if self._helpers:
                self._helper_work.put(partial(self._sync, batch))
                return True
        return False

    def _sync(self, batch: list[Job]) -> None:
        """Fsync the commits, then answer the jobs that waited for it."""
        lost = False
        try:
            self._pause.timed(partial(self._sync_store, batch[0].commit))
        except CommitLost:
            lost = True
        except AckflowError as error:
            for job in batch:
                job.error = error
        finally:
            with self._mutex:
                if self._syncing is batch:
                    self._syncing = self._hold_back(batch)
                    self._undefer()
                    self._sync_lock.release()
                if self._queue and not self._has_leader:
                    self._promote_next(None)
            if not lost:
                for job in batch:
                    if job.sync_batch is None:
                        self._deliver(job)
        if lost:
            for job in batch:
                self._repeat(job)

    def _hold_back(self, batch: list[Job]) -> list[Job] | None:
        """Defer pushes until those of the clients that are answered now may have joined them."""
        expected = count_calls(batch) + count_calls(self._deferred)
        if expected == 1 or not self._helpers or not self._pause.worthwhile:
            return None
        held_back = batch.copy()

        def pause() -> None:
            self._pause.wait(lambda: count_calls(self._deferred), expected)
            with self._mutex:
                if self._syncing is held_back:
                    self._syncing = None
                    self._undefer()
                    if self._queue and not self._has_leader:
                        self._promote_next(None)

        self._helper_work.put(pause)
        return held_back

    def _undefer(self) -> None:
        """Queue the deferred jobs, unless a sync runs or they are held back. Under `_mutex`."""
        if self._syncing is None:
            self._queue += self._deferred
            self._deferred = []

    def _repeat(self, job: Job) -> None:
        """Run a job again whose commit was lost before it was synced, and answer it."""
        with self._commit_lock:
            self._runner.run_one_by_one([job])
            waits = job.awaits_sync
            if waits:
                self._sync_lock.acquire()
        if waits:
            batch = [job]
            with self._mutex:
                self._begin_sync(batch)
            self._sync(batch)
        elif job.sync_batch is None:
            self._deliver(job)

    def _sync_store(self, number: int = 0) -> None:
        assert self._store.sync is not None
        started = time.monotonic()
        while True:
            try:
                self._store.sync(number)
                return self._budget.synced(time.monotonic() - started)
            except (AckflowError, CommitLost):
                raise
            except BaseException as signal:  # the commit is done: sync it before raising this
                self._store.interrupted = signal

    def _wait_until_synced(self, jobs: list[Job]) -> None:
        """Wait until the messages that jobs show are on disk, by the running sync or a new one."""
        for job in sorted(jobs, key=lambda job: -max(job.sync_number, job.commit)):
            while job.error is None and job.sync_number:
                try:
                    self._sync_store(max(job.sync_number, job.commit))
                    break
                except CommitLost:
                    job.sync_number = 0
                    with self._commit_lock:
                        self._runner.run_one_by_one([job])
                except AckflowError as error:
                    job.error = error

    # answering and withdrawing

    def _deliver(self, job: Job) -> None:
        """Wake the thread of a job that is done, or call it back."""
        if job.wakeup is not None:
            job.wakeup.release()
        elif job.on_answer is not None and job.sync_number:
            with self._mutex:
                self._unsynced.append(job)
                if not self._unsynced_served:
                    self._unsynced_served = True
                    self._helper_work.put(self._answer_unsynced)
        elif job.on_answer is not None:
            job.on_answer(job)

    def _raise_interrupt(self) -> None:
        interrupted = self._store.interrupted
        if interrupted is not None and threading.current_thread() is threading.main_thread():
            self._store.interrupted = None
            raise interrupted

    def _abandon(self, job: Job) -> None:
        """Withdraw a job, however often the thread is interrupted: others may wait for it."""
        while True:
            try:
                return self._withdraw(job)
            except BaseException:
                continue

    def _withdraw(self, job: Job) -> None:
        """Remove a job whose thread was interrupted, unless it already runs; others continue."""
        with self._mutex:
            job.abandoned = True
            if job in self._deferred:
                self._deferred.remove(job)
            elif job in self._queue:
                self._queue.remove(job)
        if job.leading and not job.led_by_helper:
            self._stop_leading(job)
        if job.sync_batch is not None:
            self._sync(job.sync_batch)
            job.sync_batch = None

    # running

    def _run_queued(self, group: list[Job]) -> None:
        """Run all queued jobs, and collect them in `group`."""
        with self._mutex:
            group += self._queue
            self._queue.clear()
        if not group:
            return  # the job that was to be led was withdrawn
        try:
            self._runner.run(group)
        finally:
            self._put_back(group)
            for job in group:
                job.done = True

    def _put_back(self, group: list[Job]) -> None:
        """Queue the postponed jobs of a group again; the next leader begins with what they need."""
        postponed = [job for job in group if job.postponed]
        if postponed:
            group[:] = [job for job in group if not job.postponed]
            for job in postponed:
                job.postponed, job.error = False, None
            with self._mutex:
                self._queue.extendleft(reversed(postponed))
