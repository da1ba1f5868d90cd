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

from .transport import Channel, ack_together

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
    keys at once. Keys that wait longer than `stuck_seconds` are logged, and a thread of the gate
    passes them to `on_stuck`, once per key until it is complete. `acknowledge` is called with a key
    and its messages, in place of `ack_together`; `label` is the name of a message in log lines.
    """

    def __init__(
        self,
        complete: Callable[[K, set[Hashable]], bool],
        forward: Callable[[K], None],
        *,
        stuck_seconds: float = 300.0,
        on_stuck: Callable[[K, int], None] | None = None,
        acknowledge: Callable[[K, list[tuple[Channel, int]]], None] | None = None,
        label: str = "EOF",
    ) -> None:
        self._complete = complete
        self._forward = forward
        self._stuck_seconds = stuck_seconds
        self._on_stuck = on_stuck
        self._acknowledge = acknowledge or self._ack
        self._label = label
        self._reported: set[K] = set()
        self._alarm: threading.Timer | None = None
        self._forwarded = 0
        self._lock = threading.RLock()
        self._held: dict[K, list[_Held]] = {}
        self._pending: dict[K, set[Hashable]] = {}

    def hold(self, key: K, source: Hashable, channel: Channel, delivery_tag: int) -> bool:
        """Hold a message. Forward the key if it is complete now, and return whether it was."""
        with self._lock:
            self._held.setdefault(key, []).append(
                _Held(source, channel, delivery_tag, time.monotonic())
            )
            try:
                return self.check(key)
            finally:
                self._set_alarm()

    def begin(self, key: K, item: Hashable) -> None:
        """Begin to process an item of a key: the key is not complete before its `end`."""
        with self._lock:
            self._pending.setdefault(key, set()).add(item)

    def end(self, key: K, item: Hashable) -> bool:
        """End an item. Forward the key if it is complete now, and return whether it was."""
        with self._lock:
            pending = self._pending.get(key, set())
            pending.discard(item)
            if not pending:
                self._pending.pop(key, None)
            return self.check(key)

    def check(self, key: K) -> bool:
        """If a key is complete, forward it, acknowledge its messages and return True."""
        with self._lock:
            held = [one for one in self._held.pop(key, ()) if one.channel.is_open]
            if not held:
                return False
            self._held[key] = held
            pending = len(self._pending.get(key, ()))
            if pending or not self._complete(key, {one.source for one in held}):
                deferred = self._label, key, len(held), pending
                log.info("%s deferred: key=%s held=%d pending=%d", *deferred)
                return False
            self._forward(key)
            self._forwarded += 1
            self._held.pop(key, None)
            self._reported.discard(key)
        self._acknowledge(key, [(one.channel, one.delivery_tag) for one in held])
        return True

    def _ack(self, key: K, ends: list[tuple[Channel, int]]) -> None:
        for _, tag in ends:
            log.info("ACKing %s: key=%s delivery_tag=%d", self._label, key, tag)
        ack_together(ends)

    @property
    def held(self) -> dict[K, int]:
        """The number of messages held for each key."""
        with self._lock:
            return {key: len(some) for key, some in self._open().items()}

    def _open(self) -> dict[K, list[_Held]]:
        """The held messages, without those of lost connections: others may get these now."""
        found = {}
        for key, some in self._held.items():
            if left := [one for one in some if one.channel.is_open]:
                found[key] = left
        self._held = found
        return found

    def stuck(self) -> list[K]:
        """Return, and log, the keys with a message that has been held for `stuck_seconds`."""
        with self._lock:
            found = self._stuck_now()
        for key, held in found.items():
            log.warning("%s stuck: key=%s held=%d", self._label, key, held)
        return list(found)

    def _stuck_now(self) -> dict[K, int]:
        limit = time.monotonic() - self._stuck_seconds
        return {
            key: len(some)
            for key, some in self._open().items()
            if any(one.since <= limit for one in some)
        }

    def metrics(self) -> str:
        """Return metrics of the held messages as lines for Prometheus."""
        with self._lock:
            held = self._open()
            since = [one.since for some in held.values() for one in some]
            values = {
                "held": len(since),
                "keys": len(held),
                "oldest_seconds": round(time.monotonic() - min(since), 3) if since else 0,
                "stuck": len(self._reported & held.keys()),
            }
            lines = [
                f"# TYPE ackflow_eof_{name} gauge\nackflow_eof_{name} {value}\n"
                for name, value in values.items()
            ]
            total = "ackflow_eof_forwarded_total"
            return "".join(lines) + f"# TYPE {total} counter\n{total} {self._forwarded}\n"

    # the alarm, which is set while something is held

    def _set_alarm(self, seconds: float | None = None) -> None:
        if self._alarm is None and self._held.keys() - self._reported:
            self._alarm = threading.Timer(seconds or self._stuck_seconds, self._report)
            self._alarm.daemon = True
            self._alarm.start()

    def _report(self) -> None:
        """Report the keys that are stuck and were not, and set the alarm for the others."""
        with self._lock:
            new = {k: held for k, held in self._stuck_now().items() if k not in self._reported}
            self._reported.update(new)
            self._alarm = None
            others = [one for key, one in self._held.items() if key not in self._reported]
            if others:
                first = min(one.since for some in others for one in some)
                self._set_alarm(max(0.05, first + self._stuck_seconds - time.monotonic()))
        for key, held in new.items():
            log.warning("%s stuck: key=%s held=%d", self._label, key, held)
            if self._on_stuck is not None:
                try:
                    self._on_stuck(key, held)
                except Exception:
                    log.exception("on_stuck failed for key=%s", key)


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
