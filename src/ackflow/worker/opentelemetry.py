"""Tracing with OpenTelemetry, as middleware: `worker.add(Tracing())`.

A push is a PRODUCER span whose context travels in the headers of the message; processing is a
CONSUMER span below it, also linked to it. Names and attributes follow the semantic conventions for
messaging. A push of many messages is one span with their number.
"""

import threading
from typing import Any

from ..errors import InvalidArgument
from ..options import DEFAULT_PARTITION, QUEUE_MODE
from .context import Context
from .hooks import Middleware
from .sending import Push

try:
    from opentelemetry import context as context_api
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError:
    raise InvalidArgument("tracing needs its API: pip install opentelemetry-api") from None

SYSTEM = "ackflow"


class Tracing(Middleware):
    """Trace pushes and processing. `tracer_provider`: None is the global one."""

    def __init__(self, tracer_provider: Any = None) -> None:
        self._tracer = trace.get_tracer("ackflow.worker", tracer_provider=tracer_provider)

    def before_push(self, push: Push) -> None:
        """Start the span, and put its context into the headers."""
        attributes = _attributes("send", "send", push.queue, push.partition)
        if isinstance(push.data, list | tuple):
            attributes["messaging.batch.message_count"] = len(push.data)
        span = self._tracer.start_span(
            f"send {push.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        push.notes[Tracing.__name__] = span
        propagate.inject(push.headers, trace.set_span_in_context(span))

    def after_push(self, push: Push) -> None:
        """End the span."""
        span = push.notes.pop(Tracing.__name__, None)
        if span is not None:
            if push.message_id is not None:
                span.set_attribute("messaging.message.id", push.message_id)
            _end(span, push.error)

    def before_process(self, context: Context) -> None:
        """Start the span of the handler below that of the push."""
        message = context.message
        parent = propagate.extract(message.headers)
        origin = trace.get_current_span(parent).get_span_context()
        attributes = _attributes("process", "process", message.queue, message.partition)
        attributes["messaging.message.id"] = message.id
        attributes["messaging.message.body.size"] = len(message.raw)
        if message.group != QUEUE_MODE:
            attributes["messaging.consumer.group.name"] = message.group
        if context.handler is not None:
            attributes["ackflow.handler"] = context.handler.name
        attributes["ackflow.deliveries"] = message.deliveries
        span = self._tracer.start_span(
            f"process {message.queue}", context=parent, kind=SpanKind.CONSUMER,
            attributes=attributes, links=[Link(origin)] if origin.is_valid else None,
        )  # fmt: skip
        token = context_api.attach(trace.set_span_in_context(span, parent))
        context.notes[Tracing] = span, token, threading.get_ident()

    def after_process(self, context: Context) -> None:
        """End the span with the status or the exception."""
        found = context.notes.pop(Tracing, None)
        if found is None:
            return
        span, token, thread = found
        if thread == threading.get_ident():  # a handler that was given up ends in another thread
            context_api.detach(token)
        if context.status is not None:
            span.set_attribute("ackflow.status", str(context.status))
        _end(span, context.exception if context.failed else None)


def _end(span: Any, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _attributes(name: str, kind: str, queue: str, partition: str) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    if partition != DEFAULT_PARTITION:
        found["messaging.destination.partition.id"] = partition
    return found
