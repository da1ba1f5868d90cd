"""Request statistics and the request log: every request is counted, few are logged."""

import logging
from bisect import bisect_left
from typing import NamedTuple
from urllib.parse import unquote

from msgspec import Struct

from .http import Call, Route

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LOGGED_AS_INFO = frozenset({401, 403, 413, 429})

log = logging.getLogger("ackflow.server")


class LogSettings(Struct, frozen=True):
    """Which successful requests are logged: slow ones, or all."""

    slow_seconds: float = 1.0
    every_request: bool = False


class RouteStats(NamedTuple):
    """Requests of one route with one response status."""

    route: Route | None
    status: int
    buckets: list[int]  # one more than BOUNDS
    seconds: list[float]  # one item, the sum: tuples cannot be changed


class RequestStats:
    """Request counts and times by route and status. Used on the event loop only."""

    def __init__(self) -> None:
        self._stats: dict[tuple[int, int], RouteStats] = {}

    def add(self, route: Route | None, status: int, seconds: float) -> None:
        key = id(route), status  # routes live as long as the server
        stats = self._stats.get(key)
        if stats is None:
            stats = RouteStats(route, status, [0] * (len(BOUNDS) + 1), [0.0])
            self._stats[key] = stats
        stats.buckets[bisect_left(BOUNDS, seconds)] += 1
        stats.seconds[0] += seconds

    def snapshot(self) -> list[RouteStats]:
        """A copy that later requests do not change."""
        return [
            RouteStats(s.route, s.status, list(s.buckets), list(s.seconds))
            for s in self._stats.values()
        ]


class RequestLog:
    """Counts every response and logs the notable ones."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        self.stats = RequestStats()
        self._settings = settings or LogSettings()

    def record(self, call: Call, status: int, seconds: float) -> None:
        self.stats.add(call.route, status, seconds)
        slow = seconds >= self._settings.slow_seconds and not call.long_poll
        if status >= 400 or slow or self._settings.every_request:
            level = self._level(status, slow)
            if log.isEnabledFor(level):
                self._log(level, call, status, seconds)

    def _level(self, status: int, slow: bool) -> int:
        if status >= 500:
            return logging.ERROR
        if slow:
            return logging.WARNING
        if status in _LOGGED_AS_INFO or self._settings.every_request:
            return logging.INFO
        return logging.DEBUG  # such as a missing or locked queue, which clients meet often

    def _log(self, level: int, call: Call, status: int, seconds: float) -> None:
        path = unquote(call.path)
        log.log(
            level, "%s %s %d in %.1f ms", call.method, path, status, seconds * 1e3,
            extra={
                "method": call.method, "path": path, "status": status,
                "milliseconds": round(seconds * 1e3, 3), "client": call.client[0],
                "token": call.who.name if call.who else None,
            },
        )  # fmt: skip
