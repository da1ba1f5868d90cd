"""Schedules: messages that are pushed by the clock, one for each tick however many workers run.

    schedules/NAME     the last tick that was pushed, its specification, and whether it is paused

A tick is a push, in one transaction with the record that it was pushed. A worker that finds the record
changed has lost the race, and pushes nothing. So a tick is neither lost nor repeated by a worker that
is killed.

Cron expressions are read by cronsim: it is small, maintained, works with `zoneinfo`, and does what
Debian's cron does when the clock changes. A fixed time that is skipped in spring runs right after the
change, and one that occurs twice in autumn runs once; expressions with `*` or steps in the hour or
minute follow elapsed time.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, Protocol, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from ... import validate
from ...clock import SECOND
from ...errors import AckflowError, InvalidArgument, NotFound, TransactionFailed
from ...session.session import Session
from ...session.transaction import Operations
from ...validate import Duration

log = logging.getLogger("ackflow.worker")
Missed = Literal["skip", "once", "all"]
MISSED: tuple[str, ...] = ("skip", "once", "all")
Send = Callable[[Operations, "Tick"], Any]
PREFIX = "schedules/"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
SHORTEST = 0.1  # seconds between ticks
AT_ONCE = 100  # ticks that one transaction pushes
LOOK_SECONDS = 5.0  # the clock may be set, and a tick may be pushed by others
GRACE_SECONDS = 60.0  # a tick that is later than this was missed
AHEAD = timedelta(days=1)  # a last tick that lies further ahead is of a clock that was wrong
TICK_HEADER, MISSED_HEADER = "ackflow-tick", "ackflow-missed"


class Tick(Struct, frozen=True):
    """One tick: its time in the zone of the schedule, and how many before it were left out."""

    name: str
    at: datetime
    missed: int = 0


class Spec(Protocol):
    """When ticks are due. `text` identifies the specification."""

    @property
    def text(self) -> str: ...
    def after(self, time: datetime) -> Iterator[datetime]: ...


class Every(Struct, frozen=True):
    """Ticks at whole multiples of an interval since 1970, so that all workers agree on them."""

    seconds: float

    @property
    def text(self) -> str:
        """The interval in words."""
        return f"every {self.seconds:g}s"

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield the ticks after a time."""
        step = round(self.seconds * SECOND)
        number = _micros(time) // step
        while True:
            number += 1
            yield datetime.fromtimestamp(0, UTC) + timedelta(microseconds=number * step)


class Cron(Struct, frozen=True):
    """Ticks of a cron expression in a time zone."""

    expression: str
    tz: str = "UTC"

    @property
    def text(self) -> str:
        """The expression and its time zone."""
        return f"cron {self.expression} {self.tz}"

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield the ticks after a time."""
        return iter(_cronsim()(self.expression, time.astimezone(ZoneInfo(self.tz))))


def every(interval: str | Duration) -> Every:
    """A schedule by interval: seconds, or text such as 15m or 1h30m."""
    if isinstance(interval, str):
        parts = DURATION.findall(interval)
        if not parts or "".join(n + unit for n, unit in parts) != interval:
            raise InvalidArgument(f"an interval must be like 30s, 15m or 1h30m, got {interval!r}")
        interval = sum(float(n) * UNITS[unit] for n, unit in parts)
    return Every(validate.seconds(interval, "interval", SHORTEST))


def cron(expression: str, tz: str = "UTC") -> Cron:
    """A schedule by cron expression: minute, hour, day, month and weekday, in a time zone."""
    spec = Cron(validate.some_text(expression, "expression"), validate.some_text(tz, "tz"))
    try:
        ZoneInfo(spec.tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument(f"unknown time zone {tz!r}; an example is Europe/Berlin") from None
    now = datetime(2026, 1, 1, tzinfo=UTC)
    try:
        found = next(spec.after(now), None)
    except _cron_error() as error:
        raise InvalidArgument(
            f"{expression!r} is not a cron expression ({error}); 0 6 * * 1-5 is one"
        ) from None
    if found is None:
        raise InvalidArgument(f"the cron expression {expression!r} is never due")
    return spec


class Schedule(Struct, frozen=True):
    """A name, when it is due, and what a tick pushes."""

    name: str
    spec: Spec
    send: Send
    missed: Missed


def schedule_of(
    name: str,
    spec: Spec,
    *,
    queue: str | None = None,
    data: Any = None,
    send: Send | None = None,
    missed: Missed = "once",
) -> Schedule:
    """A schedule that pushes to a queue, or what `send(t, tick)` adds to the transaction."""
    validate.name(PREFIX + validate.name(name, "name"), "name")
    validate.one_of(missed, "missed", MISSED)
    if (queue is None) == (send is None):
        raise InvalidArgument("a schedule needs a queue, or a function that sends")
    if queue is not None:
        Operations(None).push(queue, data)  # validates both
        send = _push_to(queue, data)
    return Schedule(name, spec, cast(Send, send), missed)


class ScheduleState(Struct, frozen=True):
    """The stored state of a schedule. `next` is None while it is paused, or if cron expressions
    cannot be read here."""

    name: str
    spec: str
    last: datetime
    next: datetime | None
    paused: bool


class Schedules:
    """The schedules of a worker: `run_due` pushes the ticks that are due, `start` does so in time.

    Any number of workers may have the same schedules.
    """

    def __init__(self, session: Session, schedules: Mapping[str, Schedule] | None = None) -> None:
        self._session = session
        self._schedules: dict[str, Schedule] = dict(schedules or {})
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self,
        name: str,
        spec: Spec,
        *,
        queue: str | None = None,
        data: Any = None,
        send: Send | None = None,
        missed: Missed = "once",
    ) -> Schedule:
        """Push to a queue at every tick, or what `send(t, tick)` adds to the transaction.

        `missed` ticks, while no worker ran or the clock was set, are left out (`skip`), pushed as one
        (`once`), or pushed each (`all`). A schedule begins with the tick after it is first seen.
        """
        made = schedule_of(name, spec, queue=queue, data=data, send=send, missed=missed)
        if name in self._schedules:
            raise InvalidArgument(f"there is a schedule {name!r} already")
        self._schedules[name] = made
        return made

    def describe(self) -> list[str]:
        """One line for each schedule, with its next tick."""
        now = self._now()
        return [
            f"schedule {one.name}: {one.spec.text}, next at {at.isoformat(timespec='seconds')}"
            for one in self._schedules.values()
            if (at := next(one.spec.after(now), None)) is not None
        ]

    def known(self, *, limit: int = 100, after: str | None = None) -> list[ScheduleState]:
        """The schedules that any worker has run on this database, by name, from `after` on."""
        start = None if after is None else PREFIX + after
        found = self._session.values(PREFIX, limit=limit, after=start)
        return [self._state(value.key.removeprefix(PREFIX), value.data) for value in found]

    def pause(self, name: str) -> ScheduleState:
        """Stop the ticks of a schedule in all workers until it is resumed."""
        return self._set_paused(name, True)

    def resume(self, name: str) -> ScheduleState:
        """Continue with the next tick; those that were due in the meantime are skipped."""
        return self._set_paused(name, False)

    def _set_paused(self, name: str, paused: bool) -> ScheduleState:
        key = PREFIX + validate.name(name, "name")
        while True:
            found = self._session.value(key)
            if found is None:
                raise NotFound(f"no worker has run a schedule {name!r} on this database")
            data = {"spec": found.data["spec"], "last": found.data["last"]}
            if paused:
                data["paused"] = True
            elif found.data.get("paused"):
                data["last"] = _micros(self._now())
            t = self._session.transaction()
            t.put(key, data, expect=found.version)
            if self._commit(t):
                return self._state(name, data)

    def _state(self, name: str, data: Mapping[str, Any]) -> ScheduleState:
        paused, next_at = bool(data.get("paused")), None
        if not paused:
            with contextlib.suppress(InvalidArgument):
                spec = spec_of(data["spec"])
                next_at = next(spec.after(max(self._now(), _time(int(data["last"])))), None)
        return ScheduleState(name, data["spec"], _time(int(data["last"])), next_at, paused)

    def run_due(self) -> int:
        """Push every tick that is due and not pushed yet; returns how many were pushed here.

        A schedule that cannot be pushed does not stop the others; its error is raised at the end.
        """
        pushed, failed = 0, None
        for schedule in self._schedules.values():
            try:
                pushed += self._run(schedule)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        return pushed

    def next_due(self) -> datetime | None:
        """When the next tick is due."""
        now = self._now()
        found = [next(one.spec.after(now), None) for one in self._schedules.values()]
        return min((at for at in found if at is not None), default=None)

    def start(self) -> None:
        """Push ticks in time, from a thread, until `stop`."""
        if self._thread is None and self._schedules:
            self._stop.clear()
            self._thread = threading.Thread(target=self._loop, name="ackflow-ticks", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_due()
            except AckflowError as error:
                log.warning("a tick could not be pushed and is tried again: %s", error)
            except Exception:
                log.exception("a schedule failed; its tick is tried again")
            due = self.next_due()
            left = LOOK_SECONDS if due is None else (due - self._now()).total_seconds()
            self._stop.wait(min(max(left, 0.0), LOOK_SECONDS))

    def _run(self, schedule: Schedule) -> int:
        pushed = 0
        while True:
            n, more = self._step(schedule)
            pushed += n
            if not more:
                return pushed

    def _step(self, schedule: Schedule) -> tuple[int, bool]:
        """Push ticks of a schedule, up to a limit; returns how many, and whether more are due."""
        key, now = PREFIX + schedule.name, self._now()
        found = self._session.value(key)
        text = schedule.spec.text
        paused = found is not None and bool(found.data.get("paused"))
        t = self._session.transaction()
        if (
            found is None
            or found.data["spec"] != text
            or _time(int(found.data["last"])) - now > AHEAD
        ):  # it begins now
            record = {"spec": text, "last": _micros(now), **({"paused": True} if paused else {})}
            t.put(key, record, expect=found.version if found else 0)
            self._commit(t)
            return 0, False
        if paused:
            return 0, False
        due, more = self._due(schedule, int(found.data["last"]), now)
        if due is None:
            return 0, False
        last, ticks = due
        for tick in ticks:
            schedule.send(t, tick)
        t.put(key, {"spec": text, "last": last}, expect=found.version)
        return (len(ticks), more) if self._commit(t) else (0, True)

    def _due(
        self, schedule: Schedule, last: int, now: datetime
    ) -> tuple[tuple[int, list[Tick]] | None, bool]:
        """The ticks to push now, with the time of the last one; and whether more are due."""
        after, missed, more = _time(last), 0, False
        if schedule.missed == "all":
            ticks = takewhile(lambda at: at <= now, schedule.spec.after(after))
            times = list(islice(ticks, AT_ONCE + 1))
            more = len(times) > AT_ONCE
            del times[AT_ONCE:]
        else:
            times, missed = _latest(schedule.spec, after, now)
        if not times:
            return None, False
        stop = _micros(times[-1])
        if schedule.missed == "skip" and (now - times[-1]).total_seconds() > GRACE_SECONDS:
            return (stop, []), False
        missed = 0 if schedule.missed == "skip" else missed
        return (stop, [Tick(schedule.name, at, missed) for at in times]), more

    def _commit(self, t: Any) -> bool:
        """Commit; False if another worker has pushed the tick."""
        try:
            t.commit()
            return True
        except TransactionFailed as error:
            if error.details.get("code") != "version_conflict":
                raise
            return False

    def _now(self) -> datetime:
        return _time(self._session.broker.clock.now())


def _latest(spec: Spec, after: datetime, now: datetime) -> tuple[list[datetime], int]:
    """The last tick of a time, if there is one, and how many there were before it."""
    if isinstance(spec, Every):  # there may be very many
        step = round(spec.seconds * SECOND)
        first, last = _micros(after) // step, _micros(now) // step
        return ([_time(last * step)], last - first - 1) if last > first else ([], 0)
    times, n = list[datetime](), 0
    for at in takewhile(lambda at: at <= now, spec.after(after)):
        times, n = [at], n + 1
    return times, max(0, n - 1)


def spec_of(text: str) -> Spec:
    """The specification with this text."""
    kind, _, rest = text.partition(" ")
    if kind == "every":
        return every(float(rest.removesuffix("s")))
    expression, _, tz = rest.rpartition(" ")
    return cron(expression, tz)


def tick_headers(tick: Tick) -> dict[str, str]:
    """The headers of the message of a tick."""
    headers = {TICK_HEADER: tick.at.isoformat()}
    if tick.missed:
        headers[MISSED_HEADER] = str(tick.missed)
    return headers


def _push_to(queue: str, data: Any) -> Send:
    def send(t: Operations, tick: Tick) -> None:
        t.push(queue, data, headers=tick_headers(tick))

    return send


def upcoming(spec: Spec, start: datetime, count: int) -> list[datetime]:
    """The next ticks of a specification."""
    return list(islice(spec.after(start), count))


def _cronsim() -> Any:
    try:
        from cronsim import CronSim
    except ImportError:
        raise InvalidArgument("cron expressions need cronsim: pip install ackflow[cron]") from None
    return CronSim


def _cron_error() -> type[Exception]:
    try:
        from cronsim import CronSimError
    except ImportError:
        return KeyError  # `_cronsim` has refused before
    return cast("type[Exception]", CronSimError)


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def _micros(time: datetime) -> int:
    return (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
