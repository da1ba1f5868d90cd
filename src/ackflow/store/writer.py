"""Group commit: whoever holds the writer runs every verb that waits at that moment, commits once,
and answers them all. Nobody waits for a timer."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import AckflowError, OutcomeUnknown, StorageFailed
from .tally import Tally
from .tx import Tx

Verb = Callable[..., Any]  # of the transaction and the arguments it is given with


class Job:
    """One verb on its way through the writer, and its answer."""

    __slots__ = (
        "answer", "answered", "args", "done", "error", "leads", "merge", "synced", "turn", "verb",
    )  # fmt: skip

    def __init__(
        self,
        verb: Verb,
        args: tuple[Any, ...],
        synced: bool,
        merge: Any = None,
        answered: "Callable[[Job], None] | None" = None,
    ) -> None:
        self.verb = verb
        self.args = args
        self.synced = synced
        self.merge = merge
        self.done = False
        self.leads = False
        self.turn: threading.Lock | None = None  # held while it waits for another thread
        self.answered = answered  # called when it is done, if no thread waits for it
        self.answer: Any = None
        self.error: BaseException | None = None


class Writes(Protocol):
    """What the writer needs of a store: run a body in one transaction, committed on return.

    `interrupted` is what a signal handler raised once the commit was done.
    """

    interrupted: BaseException | None

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
        self._called = threading.Semaphore(0)
        self._aide: threading.Thread | None = None
        self._closing = False
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
                self._jobs.append(job)
                if self._busy:
                    job.turn = threading.Lock()
                    job.turn.acquire()
                else:
                    self._busy = job.leads = True
            if job.turn is not None:
                job.turn.acquire()
        except BaseException:
            self._withdraw(job)
            raise
        if not job.done:
            self._lead()
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
            self._jobs.append(job)
            job.leads = not self._busy
            self._busy = True
        if job.leads:
            self._call_aide()

    def close(self) -> None:
        """End the thread that runs submitted verbs, once those are done."""
        self._closing = True
        if self._aide is not None and self._aide is not threading.current_thread():
            self._called.release()
            self._aide.join()

    def _call_aide(self) -> None:
        """Let the writer's own thread lead, for a verb that brought no thread."""
        if self._aide is None:
            self._aide = threading.Thread(target=self._assist, name="ackflow-writer", daemon=True)
            self._aide.start()
        self._called.release()

    def _assist(self) -> None:
        while True:
            self._called.acquire()
            with self._door:
                waiting = bool(self._jobs)
            if waiting:
                self._lead()
            elif self._closing:
                return

    def _lead(self) -> None:
        """Run all that wait, then let go those that are done and the next one that leads."""
        group: list[Job] = []
        try:
            with self._turn:
                self._run_waiting(group)
        finally:
            with self._door:
                following = self._choose()
            if following is not None:
                self._pass_on(following)
            for job in group:
                if job.turn is not None:
                    job.turn.release()
                elif job.answered is not None:
                    job.answered(job)
        interrupted, self._store.interrupted = self._store.interrupted, None
        if interrupted is not None:
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
        following = None
        with self._door:
            if job in self._jobs:
                self._jobs.remove(job)
                following = self._choose() if job.leads else None
        if following is not None:
            self._pass_on(following)

    def exclusively(self) -> threading.Lock:
        """The lock that keeps every verb out, for work on the writing connection itself."""
        return self._turn

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
        synced = group[0].synced if len(group) == 1 else any(job.synced for job in group)
        touched = self._store.transact(partial(self._run, group), synced)
        self.commits += 1
        self.verbs += len(group)
        tally = self._tally
        if self.told is not None and (tally.acked or tally.died):
            self.told(tally)
        if touched:
            self._committed(touched)

    def _run(self, group: list[Job], tx: Tx) -> None:
        self._tally = tx.tally
        index = 0
        while index < len(group):
            job = group[index]
            index += 1
            if job.merge is None:
                try:
                    job.answer = job.verb(tx, *job.args)
                except StorageFailed:
                    raise  # no refusal: it may come after the first write
                except AckflowError as refusal:
                    job.error = refusal
                continue
            run = [job]
            while index < len(group) and group[index].merge is not None:
                run.append(group[index])
                index += 1
            for one, answer in zip(run, self._merged(tx, [j.merge for j in run]), strict=True):
                if isinstance(answer, AckflowError):
                    one.error = answer
                else:
                    one.answer = answer
