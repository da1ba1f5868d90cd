"""Log output as text or JSON, each line with the id of its request."""

import atexit
import logging
import queue
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Literal

import msgspec

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

request_id: ContextVar[str] = ContextVar("request_id", default="")

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _RequestQueueHandler(QueueHandler):
    """Passes records to the writing thread, so that no request waits for a slow terminal."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.request_id = request_id.get()
        return record


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record that were passed as `extra`, and its request id."""
    found = {k: v for k, v in vars(record).items() if k not in _STANDARD_FIELDS and v is not None}
    if id := getattr(record, "request_id", ""):
        found["request_id"] = id
    return found


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = f"{time} {record.levelname.lower():7} {record.name}: {_one_line(record)}"
        if id := getattr(record, "request_id", ""):
            line += f" [{id}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _one_line(record: logging.LogRecord) -> str:
    """The message with control characters escaped: names and reasons come from clients."""
    text = record.getMessage()
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def start(format: Format = "text", level: str = "info") -> QueueListener:
    """Send the log to standard error through a separate thread."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    records: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handler = _RequestQueueHandler(records)
    for name, least in (("ackflow", level.upper()), ("asyncio", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False
    listener = QueueListener(records, out)
    listener.start()
    atexit.register(_stop, listener)
    return listener


def _stop(listener: QueueListener) -> None:
    if getattr(listener, "_thread", None) is not None:
        listener.stop()
