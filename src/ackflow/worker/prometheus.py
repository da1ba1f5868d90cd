"""Metrics for Prometheus: `worker.add(Metrics(port=9100))`.

| metric | labels |
|---|---|
| `ackflow_worker_messages_total` | queue, handler, outcome: ack, reject, requeue, failed, put_off, lost |
| `ackflow_worker_processing_seconds` | queue, handler |
| `ackflow_worker_in_progress` | queue |
| `ackflow_worker_pushes_total` | queue |
| `ackflow_worker_jobs_total` | status: success, failed, failed_redelivered, lost |
| `ackflow_worker_job_seconds` | |
| `ackflow_worker_jobs_in_progress` | |

A job is counted by the worker that ran it. `lost`: its end could not be recorded, because its lease was
over or it was replaced. Names of jobs are no labels: there is no limit to their number.
"""

from typing import Any

from .. import validate
from ..errors import InvalidArgument
from .context import Context, RunState
from .coordination.running_job import JobRun
from .hooks import Extension, Middleware
from .sending import Push

try:
    import prometheus_client
except ImportError:
    raise InvalidArgument("metrics need: pip install prometheus-client") from None


class Metrics(Extension, Middleware):
    """Count messages and jobs, and measure how long they take.

    With `port`, they are served under /metrics on `host` from the start of the consumer. Each
    process has its own port: with several processes, use `registry` and serve it yourself.
    """

    def __init__(
        self, *, port: int | None = None, host: str = "127.0.0.1", registry: Any = None
    ) -> None:
        self._port = None if port is None else validate.integer(port, "port", 0, 65535)
        self._host = host
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._messages = prometheus_client.Counter(
            "ackflow_worker_messages_total", "Messages by outcome.",
            ("queue", "handler", "outcome"), registry=self._registry,
        )  # fmt: skip
        self._seconds = prometheus_client.Histogram(
            "ackflow_worker_processing_seconds", "Time that a handler took.",
            ("queue", "handler"), registry=self._registry,
        )  # fmt: skip
        self._running = prometheus_client.Gauge(
            "ackflow_worker_in_progress", "Messages that are being processed.",
            ("queue",), registry=self._registry,
        )  # fmt: skip
        self._pushes = prometheus_client.Counter(
            "ackflow_worker_pushes_total", "Pushes of the worker.", ("queue",),
            registry=self._registry,
        )  # fmt: skip
        self._jobs = prometheus_client.Counter(
            "ackflow_worker_jobs_total", "Jobs that were run, by status.", ("status",),
            registry=self._registry,
        )  # fmt: skip
        self._job_seconds = prometheus_client.Histogram(
            "ackflow_worker_job_seconds", "Time that the function of a job took.",
            registry=self._registry,
        )  # fmt: skip
        self._jobs_running = prometheus_client.Gauge(
            "ackflow_worker_jobs_in_progress", "Jobs that are being run.", registry=self._registry
        )
        self._server: Any = None

    def on_start(self, run: RunState) -> None:
        """Serve the metrics, if a port was given."""
        if self._port is not None:
            self._server, _ = prometheus_client.start_http_server(
                self._port, self._host, registry=self._registry
            )

    def interrupted(self, run: RunState) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def after_push(self, push: Push) -> None:
        """Count a push."""
        if not push.duplicate and push.error is None:
            self._pushes.labels(push.queue).inc()

    def before_process(self, context: Context) -> None:
        """Count a message that is being processed."""
        self._running.labels(context.message.queue).inc()

    def after_process(self, context: Context) -> None:
        """Measure the handler."""
        queue = context.message.queue
        self._running.labels(queue).dec()
        self._seconds.labels(queue, _name(context)).observe(context.elapsed)

    def after_settle(self, context: Context, error: BaseException | None) -> None:
        """Count the outcome."""
        if error is not None:
            outcome = "lost"
        elif context.put_off is not None:
            outcome = "put_off"
        elif context.failed:
            outcome = "failed"
        else:
            outcome = str(context.status).lower()
        self._messages.labels(context.message.queue, _name(context), outcome).inc()

    def before_job(self, run: JobRun) -> None:
        """Count a job that is being run."""
        self._jobs_running.inc()

    def after_job(self, run: JobRun) -> None:
        """Count and measure a job."""
        self._jobs_running.dec()
        self._job_seconds.observe(run.elapsed)
        self._jobs.labels(run.status or "lost").inc()


def _name(context: Context) -> str:
    return "" if context.handler is None else context.handler.name
