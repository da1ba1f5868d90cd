"""Tracing and metrics of a worker."""

import urllib.request
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ackflow import Message
from ackflow.errors import InvalidArgument
from ackflow.testing import Harness
from ackflow.worker import (
    ACK,
    REJECT,
    Extension,
    Jobs,
    JobStale,
    ProcessorSession,
    RunningJob,
    RunState,
    Status,
    Worker,
)
from ackflow.worker.opentelemetry import Tracing
from ackflow.worker.prometheus import Metrics


@pytest.fixture
def spans() -> tuple[Tracing, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


def test_a_message_is_traced_from_its_push_through_what_it_causes(
    h: Harness, spans: tuple[Tracing, InMemorySpanExporter]
) -> None:
    tracing, exporter = spans
    h.worker.add(tracing)

    @h.worker.processor("orders", group="billing")
    def bill(message: Message, session: ProcessorSession) -> Status:
        session.push("invoices", 1)
        return ACK

    @h.worker.processor("invoices")
    async def send(message: Message, session: ProcessorSession) -> Status:
        return ACK

    h.worker.push("orders", {"id": 1})
    h.drain()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert list(found) == ["send orders", "send invoices", "process orders", "process invoices"]
    assert len({span.context.trace_id for span in found.values()}) == 1
    process = found["process orders"]
    assert process.parent is not None
    assert process.parent.span_id == found["send orders"].context.span_id
    assert [link.context.span_id for link in process.links] == [process.parent.span_id]
    assert found["send invoices"].parent.span_id == process.context.span_id  # type: ignore[union-attr]
    assert (process.kind, found["send orders"].kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER)
    said = dict(process.attributes or {})
    assert said["messaging.system"] == "ackflow"
    assert said["messaging.operation.type"] == "process"
    assert said["messaging.destination.name"] == "orders"
    assert said["messaging.consumer.group.name"] == "billing"
    assert said["messaging.message.id"] == found["send orders"].attributes["messaging.message.id"]  # type: ignore[index]
    assert said["ackflow.status"] == "ACK"


def test_an_exception_is_recorded_in_the_span(
    h: Harness, spans: tuple[Tracing, InMemorySpanExporter]
) -> None:
    tracing, exporter = spans
    h.worker.add(tracing)

    @h.worker.task("mail", retries=0)
    def fails() -> None:
        raise OSError("no route")

    fails.push()
    h.drain()
    span = exporter.get_finished_spans()[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "OSError"
    assert span.events[0].name == "exception"


def test_a_push_that_is_refused_ends_its_span_with_the_error(
    h: Harness, spans: tuple[Tracing, InMemorySpanExporter]
) -> None:
    tracing, exporter = spans
    h.worker.add(tracing)
    registry = prometheus_client.CollectorRegistry()
    h.worker.add(Metrics(registry=registry))
    with pytest.raises(InvalidArgument):
        h.worker.push("a", object())
    (span,) = exporter.get_finished_spans()
    assert span.name == "send a"
    assert dict(span.attributes or {})["error.type"] == "InvalidArgument"
    assert registry.get_sample_value("ackflow_worker_pushes_total", {"queue": "a"}) is None
    h.assert_messages_empty()


def test_a_push_of_many_is_one_span_with_their_number(
    h: Harness, spans: tuple[Tracing, InMemorySpanExporter]
) -> None:
    tracing, exporter = spans
    h.worker.add(tracing)
    h.worker.processor("a")(lambda message, session: ACK)
    h.worker.push("a", [1, 2, 3])
    h.drain()
    send, *processed = exporter.get_finished_spans()
    assert dict(send.attributes or {})["messaging.batch.message_count"] == 3
    assert {span.parent.span_id for span in processed} == {send.context.span_id}  # type: ignore[union-attr]


class ReadsMetrics(Extension):
    """Reads the page while the consumer runs, and stops it."""

    text = ""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def idle(self, run: RunState) -> None:
        port: Any = self._metrics._server.server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            self.text = answer.read().decode()
        run.interrupt("read")


def test_metrics_are_counted_and_served(tmp_path: Any) -> None:
    worker = Worker(tmp_path / "q.db")
    metrics = worker.add(Metrics(port=0, registry=prometheus_client.CollectorRegistry()))
    reads = worker.add(ReadsMetrics(metrics))
    worker.processor("a", name="p")(lambda message, session: REJECT if message.data else ACK)
    worker.push("a", [0, 0, 1])
    worker.run()
    worker.close()
    assert 'messages_total{handler="p",outcome="ack",queue="a"} 2.0' in reads.text
    assert 'messages_total{handler="p",outcome="reject",queue="a"} 1.0' in reads.text
    assert 'processing_seconds_count{handler="p",queue="a"} 3.0' in reads.text
    assert 'in_progress{queue="a"} 0.0' in reads.text
    assert 'pushes_total{queue="a"} 1.0' in reads.text


def test_the_jobs_of_a_worker_are_counted_and_measured(h: Harness) -> None:
    registry = prometheus_client.CollectorRegistry()
    h.worker.add(Metrics(registry=registry))

    @h.worker.processor("imports")
    def run_import(message: Message, session: ProcessorSession) -> Status:
        def work(job: RunningJob) -> bool:
            assert registry.get_sample_value("ackflow_worker_jobs_in_progress") == 1
            return bool(message.data)

        h.worker.jobs().run_unique(f"owner {message.id}", f"import {message.id}", work)
        return ACK

    h.worker.push("imports", [1, 1, 0])
    h.drain()
    with pytest.raises(OSError, match="no route"):
        h.worker.jobs().run_unique("owner", "raises", _raise)
    jobs = h.worker.jobs(stale_after=1)
    with pytest.raises(JobStale):
        jobs.run_unique("slow", "slow", lambda job: _replace(h, jobs))
    counted = {
        status: registry.get_sample_value("ackflow_worker_jobs_total", {"status": status})
        for status in ("success", "failed", "failed_redelivered", "lost")
    }
    assert counted == {"success": 3, "failed": 1, "failed_redelivered": 1, "lost": 1}
    assert registry.get_sample_value("ackflow_worker_job_seconds_count") == 6
    assert registry.get_sample_value("ackflow_worker_jobs_in_progress") == 0


def _raise(job: RunningJob) -> bool:
    raise OSError("no route")


def _replace(h: Harness, jobs: Jobs) -> bool:
    """Run another job of the name when this one counts as stale."""
    h.clock.advance(2)
    return bool(jobs.run_unique("other", "slow", lambda job: True))
