"""The rule of delayed acknowledgements: hold the ends of a key until they are complete.

    hold(key, source) ─► held ── every source is there, nothing is pending ─► forward(key) ─► ack all

An end that is held is not acknowledged, so that it comes again after a crash. Sources are counted
once, however often their ends come, and ends of a lost connection are not counted.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from .delivery import Channel

K = TypeVar("K", bound=Hashable)
log = logging.getLogger("ackflow.middleware")


class _Held(Struct, eq=False):
    source: Hashable
    channel: Channel
    delivery_tag: int
    since: float


class EofGate(Generic[K]):
    """Holds the ends of each key until `complete` says that all sources are there.

    `forward` is called once per completed key; if it raises, nothing is acknowledged and the next
    `check` of the key tries again. Methods may be called from any thread; `forward` is not called
    for two keys at once.
    """

    def __init__(
        self,
        complete: Callable[[K, set[Hashable]], bool],
        forward: Callable[[K], None],
        *,
        stuck_seconds: float = 300.0,
    ) -> None:
        self._complete = complete
        self._forward = forward
        self._stuck_seconds = stuck_seconds
        self._lock = threading.RLock()
        self._held: dict[K, list[_Held]] = {}
        self._pending: dict[K, set[Hashable]] = {}

    def hold(self, key: K, source: Hashable, channel: Channel, delivery_tag: int) -> bool:
        """Hold an end, and forward the key if it is complete; returns whether it was."""
        with self._lock:
            held = self._held.setdefault(key, [])
            held.append(_Held(source, channel, delivery_tag, time.monotonic()))
            return self.check(key)

    def begin(self, key: K, item: Hashable) -> None:
        """Count something of a key as under way: the key is not complete before its `end`."""
        with self._lock:
            self._pending.setdefault(key, set()).add(item)

    def end(self, key: K, item: Hashable) -> bool:
        """Count it as done, and forward the key if it is complete; returns whether it was."""
        with self._lock:
            self._pending.get(key, set()).discard(item)
            return self.check(key)

    def check(self, key: K) -> bool:
        """Forward a key and acknowledge its ends, if it is complete; returns whether it was."""
        with self._lock:
            held = [one for one in self._held.get(key, ()) if one.channel.is_open]
            self._held[key] = held
            pending = len(self._pending.get(key, ()))
            if pending or not held or not self._complete(key, {one.source for one in held}):
                log.info("EOF deferred: key=%s held=%d pending=%d", key, len(held), pending)
                return False
            self._forward(key)
            self._held.pop(key)
            self._pending.pop(key, None)
        for one in held:
            log.info("ACKing EOF: key=%s delivery_tag=%d", key, one.delivery_tag)
            one.channel.basic_ack(one.delivery_tag)
        return True

    @property
    def held(self) -> dict[K, int]:
        """How many ends each key holds."""
        with self._lock:
            return {key: len(some) for key, some in self._held.items() if some}

    def stuck(self) -> list[K]:
        """The keys whose first end has been held for longer than `stuck_seconds`; logged, too."""
        limit = time.monotonic() - self._stuck_seconds
        with self._lock:
            found = [
                key for key, some in self._held.items() if any(one.since <= limit for one in some)
            ]
        for key in found:
            log.warning("EOF stuck: key=%s held=%d", key, self.held.get(key, 0))
        return found


class Repeats:
    """Recognises what was received before, by an id such as (key, router, part)."""

    def __init__(self, known: Iterable[Hashable] = (), most: int = 100_000) -> None:
        self._known = dict.fromkeys(known)
        self._most = most

    def seen(self, id: Hashable) -> bool:
        """Whether an id came before; from now on it did."""
        if id in self._known:
            return True
        self._known[id] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return False
