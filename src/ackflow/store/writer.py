"""Group commit: whoever holds the writer runs every verb that waits at that moment, commits once,
and answers them all. Nobody waits for a timer."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import AckflowError
from .tx import Tx

Verb = Callable[[Tx], Any]


class Job:
    """One verb on its way through the writer, and its answer."""

    __slots__ = ("answer", "done", "error", "merge", "synced", "then", "verb")

    def __init__(
        self,
        verb: Verb,
        synced: bool,
        merge: Any = None,
        then: "Callable[[Job], None] | None" = None,
    ) -> None:
        self.verb = verb
        self.synced = synced
        self.merge = merge
        self.then = then
        self.done = False
        self.answer: Any = None
        self.error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


class Writes(Protocol):
    """What the writer needs of a store: run a body in one transaction, committed on return."""

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
        self._turn = threading.Lock()
        self._work = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.commits = 0
        self.verbs = 0

    def run(self, verb: Verb, *, synced: bool, merge: Any = None) -> Any:
        """Run one verb; the calling thread does the work of all that wait, or finds its own done."""
        job = Job(verb, synced, merge)
        self._jobs.append(job)
        with self._turn:
            if not job.done:
                self._run_waiting()
        return job.result()

    def submit(self, job: Job) -> None:
        """Run one verb on the writer's own thread; `job.then` is called there when it is done."""
        self._jobs.append(job)
        if self._thread is None:
            self._start()
        self._work.release()

    def exclusively(self) -> threading.Lock:
        """The lock that keeps every verb out, for work on the writing connection itself."""
        return self._turn

    def _start(self) -> None:
        with self._turn:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop, name="ackflow-writer", daemon=True
                )
                self._thread.start()

    def _loop(self) -> None:
        while not self._stopped:
            self._work.acquire()
            with self._turn:
                self._run_waiting()

    def close(self) -> None:
        """Let the writer's own thread end; verbs already submitted are run first."""
        self._stopped = True
        self._work.release()
        if self._thread is not None:
            self._thread.join()

    def _run_waiting(self) -> None:
        group: list[Job] = []
        while self._jobs:
            group.append(self._jobs.popleft())
        if not group:
            return
        try:
            self._commit(group)
        except BaseException as error:
            if len(group) == 1:
                group[0].error = error
            else:
                self._one_by_one(group)
        for job in group:
            job.done = True
        for job in group:
            if job.then is not None:
                job.then(job)

    def _one_by_one(self, group: list[Job]) -> None:
        """An unexpected error undid the group: find out whose it was."""
        for job in group:
            job.answer = job.error = None
            try:
                self._commit([job])
            except BaseException as error:
                job.error = error

    def _commit(self, group: list[Job]) -> None:
        touched = self._store.transact(
            lambda tx: self._run(tx, group), any(j.synced for j in group)
        )
        self.commits += 1
        self.verbs += len(group)
        if touched:
            self._committed(touched)

    def _run(self, tx: Tx, group: list[Job]) -> None:
        index = 0
        while index < len(group):
            job = group[index]
            index += 1
            if job.merge is None:
                try:
                    job.answer = job.verb(tx)
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
