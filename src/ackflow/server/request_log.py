"""Every answered request is counted; few are logged."""

import logging
from bisect import bisect_left
from typing import NamedTuple

from msgspec import Struct

from .http import Answer, Call, Route

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOLD = frozenset({401, 403, 413, 429})

log = logging.getLogger("ackflow.server")


class Watching(Struct, frozen=True):
    """What is logged of requests that went well."""

    slow_seconds: float = 1.0
    every_request: bool = False


class Seen(NamedTuple):
    """Requests of one route answered with one status."""

    route: Route | None
    status: int
    buckets: list[int]  # one more than there are bounds
    seconds: list[float]  # the sum, alone in a list


class Traffic:
    """Requests by route and status. Filled and read on the event loop."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], Seen] = {}

    def add(self, route: Route | None, status: int, seconds: float) -> None:
        key = id(route), status  # routes live as long as the server
        seen = self._seen.get(key)
        if seen is None:
            seen = Seen(route, status, [0] * (len(BOUNDS) + 1), [0.0])
            self._seen[key] = seen
        seen.buckets[bisect_left(BOUNDS, seconds)] += 1
        seen.seconds[0] += seconds

    def all(self) -> list[Seen]:
        return [Seen(s.route, s.status, list(s.buckets), list(s.seconds)) for s in self.entries()]

    def entries(self) -> list[Seen]:
        return list(self._seen.values())


class Observer:
    """Counts and logs what the server answered."""

    def __init__(self, watching: Watching | None = None) -> None:
        self.traffic = Traffic()
        self._watching = watching or Watching()

    def served(self, call: Call, route: Route | None, answer: Answer, seconds: float) -> None:
        status = answer.status
        self.traffic.add(route, status, seconds)
        slow = seconds >= self._watching.slow_seconds and not call.waits
        if status >= 400 or slow or self._watching.every_request:
            level = self._level(status, slow)
            if log.isEnabledFor(level):
                self._log(level, call, status, seconds)

    def _level(self, status: int, slow: bool) -> int:
        if status >= 500:
            return logging.ERROR
        if slow:
            return logging.WARNING
        if status in _TOLD or self._watching.every_request:
            return logging.INFO
        return logging.DEBUG  # a queue that is empty or locked is no news

    def _log(self, level: int, call: Call, status: int, seconds: float) -> None:
        scope = call.scope
        client = scope.get("client")
        log.log(
            level, "%s %s %d in %.1f ms", scope["method"], scope["path"], status, seconds * 1e3,
            extra={
                "method": scope["method"], "path": scope["path"], "status": status,
                "milliseconds": round(seconds * 1e3, 3), "client": client[0] if client else None,
                "token": getattr(call.who, "name", None),
            },
        )  # fmt: skip
