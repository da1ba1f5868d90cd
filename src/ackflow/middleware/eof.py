"""Delayed acknowledgement of end-of-file messages: hold those of a key until all have arrived.

    hold(key, source) ─► held ── every source is there, nothing is pending ─► forward(key) ─► ack all

A held message is not acknowledged, so it is delivered again after a crash. Each source counts once,
however often its message is delivered, and messages of a lost connection do not count.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from .transport import Channel

K = TypeVar("K", bound=Hashable)
log = logging.getLogger("ackflow.middleware")


class _Held(Struct, eq=False):
    source: Hashable
    channel: Channel
    delivery_tag: int
    since: float


class EofGate(Generic[K]):
    """Holds the end-of-file messages of each key until `complete(key, sources)` returns True.

    `forward` is called once per completed key. If it raises, nothing is acknowledged, and the next
    `check` of the key tries again. Any thread may call any method; `forward` is not called for two
    keys at once.
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
        """Hold a message. Forward the key if it is complete now, and return whether it was."""
        with self._lock:
            held = self._held.setdefault(key, [])
            held.append(_Held(source, channel, delivery_tag, time.monotonic()))
            return self.check(key)

    def begin(self, key: K, item: Hashable) -> None:
        """Begin to process an item of a key: the key is not complete before its `end`."""
        with self._lock:
            self._pending.setdefault(key, set()).add(item)

    def end(self, key: K, item: Hashable) -> bool:
        """End an item. Forward the key if it is complete now, and return whether it was."""
        with self._lock:
            self._pending.get(key, set()).discard(item)
            return self.check(key)

    def check(self, key: K) -> bool:
        """If a key is complete, forward it, acknowledge its messages and return True."""
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
        """The number of messages held for each key."""
        with self._lock:
            return {key: len(some) for key, some in self._held.items() if some}

    def stuck(self) -> list[K]:
        """Return, and log, the keys with a message that has been held for `stuck_seconds`."""
        limit = time.monotonic() - self._stuck_seconds
        with self._lock:
            found = [
                key for key, some in self._held.items() if any(one.since <= limit for one in some)
            ]
        for key in found:
            log.warning("EOF stuck: key=%s held=%d", key, self.held.get(key, 0))
        return found


class Repeats:
    """Recognises messages that were received before, by an id such as (key, router, part).

    It remembers the last `most` ids; `known` are ids from an earlier run.
    """

    def __init__(self, known: Iterable[Hashable] = (), most: int = 100_000) -> None:
        self._known = dict.fromkeys(known)
        self._most = most

    def seen(self, id: Hashable) -> bool:
        """Return whether an id was seen before, and remember it."""
        if id in self._known:
            return True
        self._known[id] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return False
