"""A filter router that loses no end of file, whenever it is killed.

It forwards the batches of a table at once, and holds the EOF messages of its upstream workers
unacknowledged until all of them are there and every batch has left. Killed meanwhile, it gets them
again, flagged as redelivered: python eof_router.py ADDRESS WORKERS PARTS
"""

import json
import logging
import signal
import sys
from typing import Any

from ackflow.middleware import (
    Channel,
    EofGate,
    MessageMiddlewareExchange,
    MessageMiddlewareQueue,
    ack_together,
)

log = logging.getLogger("router")
Key = tuple[str, str]  # table, client


class FilterRouter:
    """Decides what becomes of a message, and whether it is acknowledged now."""

    def __init__(self, name: str, workers: int, parts: int, out: MessageMiddlewareExchange) -> None:
        self._name = name
        self._parts = parts
        self._out = out
        self.eofs: EofGate[Key] = EofGate(
            lambda _, sources: len(sources) >= workers, self._forward_eof,
            acknowledge=self._ack_eof, label="TABLE_EOF",
        )  # fmt: skip

    def process_message(
        self, body: bytes, channel: Channel, delivery_tag: int, redelivered: bool
    ) -> tuple[bool, bool]:
        """Return (should_ack, ack_now): an EOF is acknowledged later."""
        message = json.loads(body)
        key = message["table"], message["client"]
        if message["type"] == "EOF":
            return self._handle_table_eof(key, message, channel, delivery_tag, redelivered)
        batch = message["batch"]
        self.eofs.begin(key, batch)
        self._send(batch % self._parts, message)
        self._maybe_flush_pending_eof(key, batch)
        return True, True

    def _handle_table_eof(
        self, key: Key, message: dict[str, Any], channel: Channel, tag: int, redelivered: bool
    ) -> tuple[bool, bool]:
        again = "REDELIVERED (recovering state)" if redelivered else "received"
        log.info("TABLE_EOF %s: key=%s", again, key)
        self.eofs.hold(key, message["worker"], channel, tag)
        return True, False

    def _maybe_flush_pending_eof(self, key: Key, batch: int) -> None:
        """A batch has left: forward the EOF, if every worker's is there and only waited for it."""
        self.eofs.end(key, batch)

    def _forward_eof(self, key: Key) -> None:
        """Forward the EOF to every part; it carries where it comes from, so repeats are dropped."""
        for part in range(self._parts):
            table, client = key
            trace = [table, client, self._name, part]
            self._send(part, {"type": "EOF", "table": table, "client": client, "trace": trace})
        log.info("TABLE_EOF -> aggregators: key=%s parts=%d", key, self._parts)

    def _ack_eof(self, key: Key, ends: list[tuple[Channel, int]]) -> None:
        for _, tag in ends:
            log.info("ACKing TABLE_EOF: key=%s delivery_tag=%d", key, tag)
        ack_together(ends)

    def _send(self, part: int, message: dict[str, Any]) -> None:
        # Without a queue for the part this raises, and the message comes again.
        self._out.send(json.dumps(message).encode(), f"part.{part}", mandatory=True)


class RouterServer:
    """Runs a router on the queue of its name."""

    def __init__(self, address: str, name: str, workers: int, parts: int) -> None:
        self._in = MessageMiddlewareQueue(address, f"router.{name}")
        self._out = MessageMiddlewareExchange(address, "aggregators")
        self._router = FilterRouter(name, workers, parts, self._out)

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C; errors and shutdown acknowledge nothing."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._in.stop_consuming())

        def callback(body: bytes, channel: Channel, delivery_tag: int, redelivered: bool) -> bool:
            _, ack_now = self._router.process_message(body, channel, delivery_tag, redelivered)
            return ack_now

        try:
            self._in.start_consuming(callback)
        finally:
            self._in.close()
            self._out.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python eof_router.py ADDRESS WORKERS PARTS")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    RouterServer(sys.argv[1], "0", int(sys.argv[2]), int(sys.argv[3])).run()
