"""`GET /metrics`: metrics in the Prometheus format.

Queue and group metrics are read from the database at each scrape and survive a restart; the others
count from the start of the process. An empty label stands for deleted queues and groups.
"""

import time
from collections.abc import Callable, Iterator, Sequence

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
from ..broker import presence
from ..broker.observers import BOUNDS as ACK_BOUNDS
from ..broker.views.metrics import GroupMetrics, MetricsSnapshot, snapshot
from ..clock import SECOND
from ..worker.coordination.job_metrics import JobMetrics, job_metrics
from ..worker.coordination.presence import workers
from .http import Call, Param, Response, Route, name_matcher
from .request_log import BOUNDS, RouteStats

GROUP = ("queue", "group")
COUNTERS: tuple[tuple[str, str, Callable[[GroupMetrics], int]], ...] = (
    ("ackflow_messages_delivered", "Messages delivered.", lambda g: g.delivered),
    ("ackflow_messages_redelivered", "Messages delivered again.", lambda g: g.redelivered),
    ("ackflow_messages_acked", "Messages acknowledged.", lambda g: g.acked),
    ("ackflow_messages_failed", "Messages nacked.", lambda g: g.failed),
    ("ackflow_leases_expired", "Leases that expired before all their messages were settled.",
     lambda g: g.leases_expired),
)  # fmt: skip
STATES: tuple[tuple[str, Callable[[GroupMetrics], int]], ...] = (
    ("ready", lambda g: g.ready),
    ("leased", lambda g: g.leased),
    ("waiting", lambda g: g.waiting),
    ("dead", lambda g: g.dead),
)


class Scrape:
    """The metric families of one scrape."""

    def __init__(
        self, snapshot: MetricsSnapshot, times: dict[int, list[int]], requests: list[RouteStats],
        process: dict[str, tuple[str, float]], jobs: JobMetrics | None,
    ) -> None:  # fmt: skip
        self._snapshot = snapshot
        self._times = times
        self._requests = requests
        self._process = process
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("ackflow", "The server.", {"version": __version__})
        yield from self._queues()
        yield from self._gauges()
        yield self._time_to_ack()
        yield from self._http()
        if self._jobs is not None:
            yield from _job_families(self._jobs)
        for name, (description, value) in self._process.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, description, value)
        yield from ProcessCollector(registry=None).collect()

    def _queues(self) -> Iterator[Metric]:
        pushed = CounterMetricFamily(
            "ackflow_messages_pushed", "Messages pushed.", labels=["queue"]
        )
        for queue, n in self._snapshot.pushed.items():
            pushed.add_metric([queue], n)
        yield pushed
        for name, description, read in COUNTERS:
            family = CounterMetricFamily(name, description, labels=GROUP)
            for group in self._snapshot.groups:
                family.add_metric([group.queue, group.name], read(group))
            yield family
        dead = CounterMetricFamily(
            "ackflow_dead_letters", "Messages dead-lettered, by kind.", labels=[*GROUP, "kind"]
        )
        for group in self._snapshot.groups:
            for kind, n in group.dead_by_kind.items():
                dead.add_metric([group.queue, group.name, kind], n)
        yield dead

    def _gauges(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "ackflow_messages", "Messages of a group by state.", labels=[*GROUP, "state"]
        )
        lag = GaugeMetricFamily("ackflow_lag", "Messages not yet settled.", labels=GROUP)
        oldest = GaugeMetricFamily(
            "ackflow_oldest_ready_age_seconds",
            "Age of the oldest message ready for delivery; 0 if there is none.",
            labels=GROUP,
        )
        for group in self._snapshot.groups:
            if group.id:
                for state, read in STATES:
                    messages.add_metric([group.queue, group.name, state], read(group))
                lag.add_metric([group.queue, group.name], group.lag)
                oldest.add_metric([group.queue, group.name], group.oldest_ready_seconds)
        yield from (messages, lag, oldest)

    def _time_to_ack(self) -> Metric:
        family = HistogramMetricFamily(
            "ackflow_time_to_ack_seconds", "Time from the delivery of a message to its ack.",
            labels=GROUP,
        )  # fmt: skip
        for group in self._snapshot.groups:
            known = [self._times[id] for id in (group.id, *group.also) if id in self._times]
            if known:
                *buckets, total = map(sum, zip(*known, strict=True))
                family.add_metric(
                    [group.queue, group.name], _cumulative(ACK_BOUNDS, buckets), total / SECOND
                )
        return family

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ackflow_http_requests", "Requests answered.", labels=["method", "route", "status"]
        )
        seconds = HistogramMetricFamily(
            "ackflow_http_request_seconds",
            "Time from the head of a request to the end of its response, including long polls.",
            labels=["method", "route"],
        )
        by_route: dict[tuple[str, str], tuple[list[int], float]] = {}
        for stats in self._requests:
            labels = (stats.route.method, stats.route.path) if stats.route else ("", "")
            requests.add_metric([*labels, str(stats.status)], sum(stats.buckets))
            buckets, total = by_route.get(labels, ([0] * len(stats.buckets), 0.0))
            buckets = [a + b for a, b in zip(buckets, stats.buckets, strict=True)]
            by_route[labels] = buckets, total + stats.seconds[0]
        for labels, (buckets, total) in by_route.items():
            seconds.add_metric(list(labels), _cumulative(BOUNDS, buckets), total)
        yield from (requests, seconds)


def _job_families(found: JobMetrics) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "ackflow_jobs", "Root jobs that are kept, by name and status.", labels=["name", "status"]
    )
    for labels, n in found.counts.items():
        jobs.add_metric(labels, n)
    oldest = GaugeMetricFamily(
        "ackflow_job_oldest_seconds", "Age of the oldest root job that has not ended; 0 if none.",
        labels=["status"],
    )  # fmt: skip
    for status, seconds in found.oldest.items():
        oldest.add_metric([status], seconds)
    yield from (jobs, oldest)


def _cumulative(bounds: Sequence[float], counts: list[int]) -> list[tuple[str, float]]:
    result, total = [], 0
    for bound, n in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += n
        result.append((bound, float(total)))
    return result


async def metrics(call: Call) -> Response:
    """Return the metrics of the queues that the token covers and the pattern matches."""
    server = call.server
    fits = name_matcher(call.query.get("queue", "*"))

    def is_visible(queue: str) -> bool:
        return server.may_see(call, queue) and bool(fits(queue))

    broker = server.broker
    process = {
        "ackflow_commits_total": ("Transactions committed.", float(broker.commits)),
        "ackflow_verbs_total": ("Verbs run; many share one transaction.", float(broker.verbs)),
        "ackflow_waiting_pops": ("Pops waiting for messages.", float(server.waiting)),
        "ackflow_uptime_seconds": ("Time since the start.", time.monotonic() - server.started),
    }
    whole = call.who is None or call.who.may_everywhere("read-only")
    whole = whole and "queue" not in call.query
    requests = server.request_log.stats.snapshot()
    encode, type = choose_encoder(call.header(b"accept"))

    def scrape() -> bytes:
        all = broker.look(snapshot)
        seen = MetricsSnapshot(
            {queue: n for queue, n in all.pushed.items() if is_visible(queue)},
            [group for group in all.groups if is_visible(group.queue)],
        )
        found = None
        if whole:  # what belongs to no queue
            found = job_metrics(server.session)
            brokers, running = broker.look(presence.brokers), workers(server.session)
            process["ackflow_brokers"] = ("Brokers of the database.", float(len(brokers)))
            process["ackflow_workers"] = ("Workers that run.", float(len(running)))
        return encode(Scrape(seen, broker.ack_times(), requests, process, found))

    return Response(200, await server.scrapes.run(scrape), type.encode())


ROUTES = (
    Route(
        "GET", "/metrics", metrics, "read-only", tag="operations", checks_queues=True,
        summary="Metrics for Prometheus",
        query=(Param("queue", {"type": "string"}, "Include only queues that match this pattern"),),
        responses={200: "text/plain"},
    ),
)  # fmt: skip
