"""The broker behind a server, for asyncio: its requests are awaited on the event loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar, cast

from ..broker.aio import awaited
from ..broker.core.ack_and_pop import ack_and_pop
from ..broker.core.handout import Handout
from ..broker.core.settle import settle
from ..broker.requests import Mark, PopRequest, Verdict
from ..errors import AckflowError, LeaseLost, NotFound, SessionClosed
from ..store.tx import Tx
from .broker import RemoteBroker

P = ParamSpec("P")
T = TypeVar("T")
Marks = dict[int, list[Mark]]
RELEASE_SECONDS = 2.0  # how long a cancelled pop waits for its release, which continues after that
log = logging.getLogger("ackflow")


class AwaitedRemoteBroker(RemoteBroker):
    """Sends verbs for code that `spawn` runs; a pop that is cancelled releases what it leased."""

    def __init__(self, blocking: RemoteBroker) -> None:
        assert blocking.on_loop is not None
        super().__init__(blocking.on_loop(), blocking.clock)
        self._blocking = blocking
        self._releasing: set[asyncio.Future[None]] = set()

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if verb is not ack_and_pop:
            return super().do(verb, synced, *args, **kwargs)
        marks, request = cast(tuple[Marks, PopRequest], args)
        request = request.repeatable()
        do: Callable[..., T] = super().do
        return self._or_release(request, partial(do, verb, synced, marks, request))

    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        request = request.repeatable()
        return self._or_release(request, partial(super().pop, request, wait))

    async def returned(self) -> None:
        """Wait until the messages leased by cancelled pops are released, but not for long."""
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=RELEASE_SECONDS)

    def _or_release(self, request: PopRequest, call: Callable[[], T]) -> T:
        """Run a call that leases messages; if it is cancelled, release them."""
        try:
            return call()
        except asyncio.CancelledError:
            # A second cancellation ends this wait, not the release.
            if request.token is not None:
                awaited(asyncio.wait([self._release(request)], timeout=RELEASE_SECONDS))
            raise

    def _release(self, request: PopRequest) -> "asyncio.Future[None]":
        """Release what a pop leased, or may still lease, from a thread of its own: the task, or the
        event loop, may end now. The pop is repeated first, so that it cannot come after its
        release: under the same token it then finds a lease that has ended."""
        released: Future[None] = Future()

        def release() -> None:
            try:
                token = self._blocking.pop(request).token
                if token is not None:
                    self._blocking.do(settle, False, token, [Mark(Verdict("release"))])
            except (LeaseLost, NotFound, SessionClosed):
                pass  # it is over already, or the pop found no queue
            except AckflowError as error:
                log.warning(
                    "the lease of a cancelled pop could not be released and will expire: %s", error
                )
            finally:
                released.set_result(None)

        threading.Thread(target=release, name="ackflow-release", daemon=True).start()
        waits = asyncio.wrap_future(released)
        self._releasing.add(waits)
        waits.add_done_callback(self._releasing.discard)
        return waits
