"""`GET /metrics`: what to watch, in the format of Prometheus.

What the database knows is read from it at each scrape, so it survives a restart; the rest counts
from the start of the process. Labels without a name stand for queues and groups now deleted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from .. import __version__
from ..broker.observers import BOUNDS as ACK_BOUNDS
from ..broker.views.metrics import GroupMetrics, MetricsSnapshot, snapshot
from ..clock import SECOND
from .http import Answer, Call, Param, Route
from .request_log import BOUNDS, Seen

GROUP = ("queue", "group")
COUNTERS: tuple[tuple[str, str, Callable[[GroupMetrics], int]], ...] = (
    ("ackflow_messages_delivered", "Messages handed out.", lambda g: g.delivered),
    ("ackflow_messages_redelivered", "Of these, not for the first time.", lambda g: g.redelivered),
    ("ackflow_messages_acked", "Messages acknowledged.", lambda g: g.acked),
    ("ackflow_messages_failed", "Messages given back as failed.", lambda g: g.failed),
    ("ackflow_leases_expired", "Leases that ran out before all was settled.",
     lambda g: g.leases_expired),
)  # fmt: skip
STATES: tuple[tuple[str, Callable[[GroupMetrics], int]], ...] = (
    ("ready", lambda g: g.ready),
    ("leased", lambda g: g.leased),
    ("waiting", lambda g: g.waiting),
    ("dead", lambda g: g.dead),
)


class Scrape:
    """Everything shown at one moment, as metric families."""

    def __init__(
        self, snapshot: MetricsSnapshot, times: dict[int, list[int]], traffic: list[Seen],
        process: dict[str, tuple[str, float]],
    ) -> None:  # fmt: skip
        self._figures = snapshot
        self._times = times
        self._traffic = traffic
        self._process = process

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("ackflow", "The server.", {"version": __version__})
        yield from self._queues()
        yield from self._now()
        yield self._time_to_ack()
        yield from self._http()
        for name, (says, value) in self._process.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, says, value)
        yield from ProcessCollector(registry=None).collect()

    def _queues(self) -> Iterator[Metric]:
        pushed = CounterMetricFamily(
            "ackflow_messages_pushed", "Messages pushed.", labels=["queue"]
        )
        for queue, n in self._figures.pushed.items():
            pushed.add_metric([queue], n)
        yield pushed
        for name, says, read in COUNTERS:
            family = CounterMetricFamily(name, says, labels=GROUP)
            for group in self._figures.groups:
                family.add_metric([group.queue, group.name], read(group))
            yield family
        dead = CounterMetricFamily(
            "ackflow_dead_letters", "Messages that died, by kind.", labels=[*GROUP, "kind"]
        )
        for group in self._figures.groups:
            for kind, n in group.dead_by_kind.items():
                dead.add_metric([group.queue, group.name, kind], n)
        yield dead

    def _now(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "ackflow_messages", "Messages of a group by state.", labels=[*GROUP, "state"]
        )
        lag = GaugeMetricFamily("ackflow_lag", "Messages not yet settled.", labels=GROUP)
        oldest = GaugeMetricFamily(
            "ackflow_oldest_ready_age_seconds",
            "Age of the oldest message that could be handed out; 0 when there is none.",
            labels=GROUP,
        )
        for group in self._figures.groups:
            if group.id:
                for state, read in STATES:
                    messages.add_metric([group.queue, group.name, state], read(group))
                lag.add_metric([group.queue, group.name], group.lag)
                oldest.add_metric([group.queue, group.name], group.oldest_ready_seconds)
        yield from (messages, lag, oldest)

    def _time_to_ack(self) -> Metric:
        family = HistogramMetricFamily(
            "ackflow_time_to_ack_seconds", "From the hand-out of a message to its ack.",
            labels=GROUP,
        )  # fmt: skip
        for group in self._figures.groups:
            if (counts := self._times.get(group.id)) is not None:
                *buckets, total = counts
                family.add_metric(
                    [group.queue, group.name], _cumulated(ACK_BOUNDS, buckets), total / SECOND
                )
        return family

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ackflow_http_requests", "Requests answered.", labels=["method", "route", "status"]
        )
        seconds = HistogramMetricFamily(
            "ackflow_http_request_seconds",
            "Time from the head of a request to the end of its answer; long polls wait in it.",
            labels=["method", "route"],
        )
        together: dict[tuple[str, str], tuple[list[int], float]] = {}
        for seen in self._traffic:
            where = (seen.route.method, seen.route.path) if seen.route else ("", "")
            requests.add_metric([*where, str(seen.status)], sum(seen.buckets))
            buckets, total = together.get(where, ([0] * len(seen.buckets), 0.0))
            buckets = [a + b for a, b in zip(buckets, seen.buckets, strict=True)]
            together[where] = buckets, total + seen.seconds[0]
        for where, (buckets, total) in together.items():
            seconds.add_metric(list(where), _cumulated(BOUNDS, buckets), total)
        yield from (requests, seconds)


def _cumulated(bounds: Sequence[float], counts: list[int]) -> list[tuple[str, float]]:
    result, total = [], 0
    for bound, n in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += n
        result.append((bound, float(total)))
    return result


async def metrics(call: Call) -> Answer:
    """Figures of all queues the token may see, or of those that match a pattern."""
    server = call.server
    pattern = call.query.get("queue", "*")

    def shown(queue: str) -> bool:
        return server.sees(call, queue) and (pattern == "*" or fnmatchcase(queue, pattern))

    async with server.scraping:
        all = await server.onloop.look(snapshot)
    seen = MetricsSnapshot(
        {queue: n for queue, n in all.pushed.items() if shown(queue)},
        [group for group in all.groups if shown(group.queue)],
    )
    writer = server.broker.writer
    process = {
        "ackflow_commits_total": ("Transactions committed.", float(writer.commits)),
        "ackflow_verbs_total": ("Verbs run in them: many share a commit.", float(writer.verbs)),
        "ackflow_waiting_pops": ("Pops waiting for messages.", float(server.waiting)),
        "ackflow_uptime_seconds": ("Since the start.", time.monotonic() - server.started),
    }
    scrape = Scrape(seen, server.broker.observer.times(), server.observer.traffic.all(), process)
    encode, type = choose_encoder(call.header(b"accept"))
    return Answer(200, await server.thread(partial(encode, scrape)), type.encode())


ROUTES = (
    Route(
        "GET", "/metrics", metrics, "read-only", tag="operations", checks=True,
        summary="Figures for Prometheus",
        query=(Param("queue", {"type": "string"}, "Only queues that match this pattern"),),
        answers={200: "text/plain"},
    ),
)  # fmt: skip
