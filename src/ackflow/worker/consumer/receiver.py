"""How a consumer gets messages from its queues, in the order of its mode."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ...broker.requests import PopRequest
from ...errors import AckflowError
from ...session.consumer import RepeatablePop
from ...session.messages import Batch, Message
from ...session.session import Session
from ..processor import Binding
from .modes import Turns

log = logging.getLogger("ackflow.worker")
# How long a pop waits: while nothing is processed, and while something is. What stops the consumer
# does not end a wait.
LOCAL_WAITS = (0.5, 0.05)
REMOTE_WAITS = (1.0, 0.25)
Found = list[tuple[Binding, Batch[Message]]]


class Receiver:
    """Pops from the queues of a consumer. While all are empty, it waits for all of them."""

    def __init__(
        self, session: Session, bindings: Sequence[Binding], mode: str, stopped: Callable[[], bool]
    ) -> None:
        self._session = session
        self._bindings = bindings
        self._turns = Turns(mode, [binding.weight for binding in bindings])
        self._stopped = stopped
        self._waits = LOCAL_WAITS if session.broker.local else REMOTE_WAITS
        self._pops = [RepeatablePop(self._request(binding)) for binding in bindings]
        self._waiting: dict[Future[Batch[Message] | None], int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def receive(self, most: int, wait: bool = True, busy: bool = False) -> Found:
        """Take turns until a queue has messages; an empty list after a whole cycle of empty
        queues, for which it waits. `busy`: messages are being processed, and may end the run."""
        seconds = self._waits[busy]
        if found := self._arrived():
            return found
        alone = len(self._bindings) == 1 and wait
        waiting = set(self._waiting.values())
        while True:
            index = self._turns.next()
            batch = None
            if index not in waiting:  # its waiting pop brings what it has
                batch = self._pop(index, most, seconds if alone else 0.0)
            self._turns.took(bool(batch))
            if batch:
                return [(self._bindings[index], batch)]
            if self._turns.idle or self._stopped():
                break
        if wait and not alone and not self._stopped():
            return self._wait_for_all(most, seconds)
        return []

    def close(self) -> Found:
        """End the waiting pops; returns what they brought at the end."""
        found: Found = []
        for future, index in self._waiting.items():
            batch = future.result()
            if batch:
                found.append((self._bindings[index], batch))
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown()
        return found

    def _wait_for_all(self, most: int, seconds: float) -> Found:
        """Wait for all queues at once, each in a thread of its own, until one has messages."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._bindings), "ackflow-worker-receive")
        share = max(1, most // len(self._bindings))
        for index in set(range(len(self._bindings))).difference(self._waiting.values()):
            self._waiting[self._pool.submit(self._pop, index, share, seconds)] = index
        wait(self._waiting, seconds, FIRST_COMPLETED)
        return self._arrived()

    def _arrived(self) -> Found:
        """What waiting pops have brought."""
        found: Found = []
        for future in [future for future in self._waiting if future.done()]:
            index = self._waiting.pop(future)
            if batch := future.result():
                found.append((self._bindings[index], batch))
        return found

    def _pop(self, index: int, most: int, wait: float) -> Batch[Message] | None:
        pop = self._pops[index]
        request = pop.request()
        request.batch = 1 if self._bindings[index].one_by_one else most
        try:
            batch = self._session.take(request, wait)
        except AckflowError as error:
            self._pause(pop.pause(error))
            return None
        pop.answered(batch)
        return batch

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        pause = threading.Event()
        while not self._stopped() and (left := until - time.monotonic()) > 0:
            pause.wait(min(left, 0.1))

    def _request(self, binding: Binding) -> PopRequest:
        return self._session.pop_request(
            binding.queue, group=binding.group, batch=1, lease_seconds=binding.lease_seconds
        )
