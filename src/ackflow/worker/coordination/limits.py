"""Limits across all workers of a database: how many messages of a key run at once, and how often.

    limits/slot/KEY/N      a message that runs, bound to the lease of its message
    limits/line/KEY        when the last message that found no slot comes again
    limits/held/KEY        how long messages of the key run, on average
    limits/starts/KEY      when the last messages of the key started, or are going to
    limits/wait/KEY/ID     the start that is reserved for a message

The last two have the time at which they were written: under a clock that was ahead, the times in them
were too. Values of an earlier version have none.

A slot ends with the lease, so a worker that is killed gives it back. A message over a limit is not
worth a loop: it is released, uncounted, until the time at which its turn comes. The messages that wait
for a slot come back one after another, at the pace at which slots become free.
"""

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct

from ... import validate
from ...clock import AHEAD, SECOND, micros
from ...errors import InvalidArgument, TransactionFailed
from ...session.messages import Delivery
from ...session.session import Session
from ...session.transaction import Operations

PREFIX = "limits/"
TRIES = 8
MOST_STARTS = 1_000  # of a rate; their times are one value
MOST_KEY = 160  # bytes, after quoting
LONGEST_WAIT = 30.0
HELD = 0.05  # seconds that a message is thought to run at least, while that is not known
MOST_AT_ONCE = 1_000
PROBES = 3
FAILED_SECONDS = 1.0
SHORTEST_STEP, LONGEST_STEP = 0.01, 1.0
KEEP_SECONDS = 3_600.0
UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
RATE = re.compile(r"(\d+)\s*/\s*(\d+)?\s*(s|m|h|d)(?:ec|in|our|ay)?")


class Rate(Struct, frozen=True):
    """At most `count` starts in any `seconds`."""

    count: int
    seconds: float

    @property
    def late_seconds(self) -> float:
        """How late a reserved start may be used; after that another one is reserved."""
        return min(max(0.05, self.seconds / 20), self.seconds / 2)


class Deferred(Struct, frozen=True):
    """The message is over a limit: release it with this `delay`, in seconds."""

    delay: float


class Permit:
    """The message may run. `release` gives its slot back, in the transaction that settles it."""

    def __init__(self, slot: str | None, held: str, average: float | None, started: int) -> None:
        self._slot = slot
        self._held = held
        self._average = average
        self._started = started

    @property
    def bound(self) -> bool:
        """Whether it has a slot to release."""
        return self._slot is not None

    def release(self, t: Operations, now: int) -> None:
        """Add the end of the permit to a transaction. Without it, the slot ends with the lease."""
        if self._slot is None:
            return
        t.delete(self._slot)
        took = max(0.0, (now - self._started) / SECOND)
        average = took if self._average is None else 0.8 * self._average + 0.2 * took
        if self._average is None or abs(average - self._average) > 0.2 * self._average:
            t.put(self._held, average, ttl=KEEP_SECONDS)


def parse_rate(text: "str | Rate") -> Rate:
    """A rate as text: 10/s, 100/m, 5/h, 20/10s."""
    if isinstance(text, Rate):
        return text
    found = RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None or not 1 <= int(found[1]) <= MOST_STARTS or found[2] == "0":
        raise InvalidArgument(
            f"a rate must be 1 to {MOST_STARTS:,} per time, such as 10/s, 100/m or 20/10s, got {text!r}"
        )
    return Rate(int(found[1]), float(found[2] or 1) * UNITS[found[3]])


class Limited(Protocol):
    """What a limit must know of a handler: its name, and the arguments of a message."""

    @property
    def name(self) -> str: ...
    def arguments_of(self, message: Delivery) -> tuple[Sequence[Any], Mapping[str, Any]]: ...


class Limit(Struct, frozen=True):
    """The limit of a task or processor: for each key, messages at once and starts per time."""

    concurrency: int | None
    key: str | Callable[..., object] | None
    rate: Rate | None

    @classmethod
    def of(
        cls,
        concurrency: int | None,
        key: str | Callable[..., object] | None,
        rate: str | Rate | None,
    ) -> "Limit | None":
        """A limit by its options; None without any. A key alone means one at a time."""
        if concurrency is None and key is None and rate is None:
            return None
        if key is not None and not callable(key):
            validate.name(key, "concurrency_key")
        if concurrency is not None:
            validate.integer(concurrency, "concurrency", 1, MOST_AT_ONCE)
        elif rate is None:
            concurrency = 1
        return cls(concurrency, key, None if rate is None else parse_rate(rate))

    def name_for(self, handler: Limited, message: Delivery) -> str:
        """The key of a message, under the name of its handler."""
        if self.key is None:
            return handler.name
        if not callable(self.key):
            return f"{handler.name}:{self.key}"
        args, kwargs = handler.arguments_of(message)
        return f"{handler.name}:{self.key(*args, **kwargs)}"


class Limits:
    """Asks whether a message may run now."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def acquire(
        self,
        message: Delivery,
        key: str,
        *,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
    ) -> Permit | Deferred:
        """Take a slot and a start for a message, or say when it may ask again.

        `concurrency` messages of the key run at once, in all workers together; `rate` of them start
        per time.
        """
        name = quote(validate.name(key, "key"), safe=" :@+=,;~!$&'()*")
        if len(name.encode()) > MOST_KEY:
            raise InvalidArgument(f"the key of a limit must have at most {MOST_KEY} bytes")
        if concurrency is not None:
            validate.integer(concurrency, "concurrency", 1, MOST_AT_ONCE)
        asked = None if rate is None else parse_rate(rate)
        if concurrency is None and asked is None:
            raise InvalidArgument("a limit needs a concurrency, a rate, or both")
        for _ in range(TRIES):
            t = self._session.transaction()
            answer = self._try(t, message, name, concurrency, asked)
            try:
                t.commit()
                return answer
            except TransactionFailed as error:  # another worker was faster
                if error.details.get("code") != "version_conflict":
                    raise
        return Deferred(random.uniform(SHORTEST_STEP, 5 * SHORTEST_STEP))

    def now(self) -> int:
        """The time of the broker."""
        return self._session.broker.clock.now()

    def _try(
        self, t: Operations, message: Delivery, key: str, concurrency: int | None, rate: Rate | None
    ) -> Permit | Deferred:
        now, slot, held = self.now(), None, f"{PREFIX}held/{key}"
        average: float | None = None
        if concurrency is not None:
            found = self._session.value(held)
            average = None if found is None else float(found.data)
            slot, oldest = self._free_slot(key, concurrency)
            if slot is None:
                age = 0.0 if oldest is None else (now - oldest) / SECOND
                seconds = max(HELD, age) if average is None else average
                return self._stand_in_line(t, key, seconds / concurrency, now)
        if rate is not None:
            start = self._take_start(t, message, key, rate, now)
            if start > now:
                return Deferred((start - now) / SECOND)
        if slot is not None:
            t.put(slot, message.transaction_id, expect=0, lease=message)
        return Permit(slot, held, average, now)

    def _free_slot(self, key: str, concurrency: int) -> tuple[str | None, int | None]:
        """A slot that is free; or None, and when the oldest of them was taken."""
        prefix = f"{PREFIX}slot/{key}/"
        if concurrency > PROBES:  # in most cases, looking at a few is enough
            for n in random.sample(range(concurrency), PROBES):
                if self._session.value(f"{prefix}{n}") is None:
                    return f"{prefix}{n}", None
        used = {one.key: one for one in self._session.values(prefix, limit=2 * MOST_AT_ONCE)}
        free = [name for n in range(concurrency) if (name := f"{prefix}{n}") not in used]
        if free and len(used) < concurrency:  # it may have been larger
            return random.choice(free), None
        return None, min(round(one.updated_at.timestamp() * SECOND) for one in used.values())

    def _stand_in_line(self, t: Operations, key: str, step: float, now: int) -> Deferred:
        """No slot is free: come again behind the others that wait, at their pace."""
        name = f"{PREFIX}line/{key}"
        found = self._session.value(name)
        last = now if found is None else max(now, int(found.data))
        step = min(max(step, SHORTEST_STEP), LONGEST_STEP)
        turn = min(last + micros(step), now + micros(LONGEST_WAIT))
        t.put(name, turn, expect=found.version if found else 0, ttl=KEEP_SECONDS)
        return Deferred((turn - now) / SECOND)

    def _take_start(self, t: Operations, message: Delivery, key: str, rate: Rate, now: int) -> int:
        """The time at which a message may start: now, or the time reserved for it."""
        period, name = micros(rate.seconds), f"{PREFIX}starts/{key}"
        wait = f"{PREFIX}wait/{key}/{_short(message.transaction_id)}"
        mine = self._session.value(wait)
        reserved: int | None = None
        if mine is not None:
            written, reserved = _dated(mine.data, list_of=False)
            if _ahead(written, now):
                reserved = None
        if reserved is not None and reserved > now:
            return reserved
        if mine and reserved is not None and now - reserved <= micros(rate.late_seconds):
            t.delete(wait, expect=mine.version)
            return now
        found = self._session.value(name)
        starts: list[int] = []
        if found is not None:
            written, times = _dated(found.data, list_of=True)
            starts = [time - _ahead(written, now) for time in times]
        if reserved is not None and reserved in starts:
            starts.remove(reserved)  # it came too late for that one
        start = now
        if len(starts) >= rate.count:
            start = max(now, starts[-rate.count] + period)
        starts = sorted([*starts, start])[-rate.count :]
        seconds = (starts[-1] - now) / SECOND + rate.seconds + 60.0
        t.put(name, [now, starts], expect=found.version if found else 0, ttl=seconds)
        if start > now:
            t.put(wait, [now, start], ttl=(start - now) / SECOND + 600.0)
        elif mine is not None:
            t.delete(wait)
        return start


def _dated(data: Any, list_of: bool) -> tuple[int, Any]:
    """When a start, or a list of starts, was written, and what it is; 0: by an earlier version."""
    old = not isinstance(data[-1], list) if list_of else isinstance(data, int)
    return (0, data) if old else (int(data[0]), data[1])


def _ahead(written: int, now: int) -> int:
    """How far the clock was ahead when a value was written; 0 if it was right."""
    return written - now if written > now + AHEAD else 0


def _short(text: str) -> str:
    """A digest: a key has no room for a long transaction id."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
