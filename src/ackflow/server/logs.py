"""Log lines: as text for people or as JSON for machines, each with the id of its request."""

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

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Hand(QueueHandler):
    """Hands records to the thread that writes them, so that no request waits for a terminal."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.request_id = request_id.get()
        return record


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says in fields of its own."""
    found = {k: v for k, v in vars(record).items() if k not in _USUAL and v is not None}
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
    """Names and reasons come from outside: none of them may begin a line of its own."""
    text = record.getMessage()
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def start(format: Format = "text", level: str = "info") -> QueueListener:
    """Let everything the server logs go to standard error, through a thread of its own."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    records: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hand = _Hand(records)
    for name, least in (("ackflow", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [hand]
        logger.setLevel(least)
        logger.propagate = False
    listener = QueueListener(records, out)
    listener.start()
    atexit.register(_stop, listener)
    return listener


def _stop(listener: QueueListener) -> None:
    if getattr(listener, "_thread", None) is not None:
        listener.stop()
