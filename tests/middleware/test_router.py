"""The example: a router killed while it holds EOFs, started again, gives the same result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ackflow.middleware import MessageMiddlewareExchange, MessageMiddlewareQueue, Repeats

from .test_middleware import ROOT, Consumer, address, rabbitmq, until

__all__ = ["address", "rabbitmq"]  # fixtures
WORKERS, PARTS, BATCHES = 3, 2, 6


class Router:
    """The example as a process; what it logged is in its file."""

    def __init__(self, address: str, log: Path) -> None:
        self._log = log
        command = [sys.executable, ROOT / "examples" / "eof_router.py", address]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, str(WORKERS), str(PARTS)], stdout=out, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self._log.read_text()

    def stop(self, sign: int) -> None:
        os.kill(self.process.pid, sign)
        self.process.wait(60)


@pytest.mark.outer
def test_a_router_killed_while_it_holds_eofs_loses_none(address: str, tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    repeats = Repeats()

    def collect(body: bytes) -> None:
        message = json.loads(body)
        id = tuple(message["trace"]) if message["type"] == "EOF" else ("batch", message["batch"])
        if not repeats.seen(id):
            received.append(message)

    def eof(worker: int) -> bytes:
        message = {"type": "EOF", "table": "menu", "client": "c1", "worker": worker}
        return json.dumps(message).encode()

    with (
        MessageMiddlewareQueue(address, "router.0") as to_router,
        MessageMiddlewareExchange(address, "aggregators", queue="agg", keys=["part.*"]) as out,
    ):
        first = Router(address, tmp_path / "first.log")
        for n in range(BATCHES):
            data = {"type": "DATA", "table": "menu", "client": "c1", "batch": n}
            to_router.send(json.dumps(data).encode())
        for worker in range(WORKERS - 1):
            to_router.send(eof(worker))
        until(lambda: first.log().count("TABLE_EOF received") == WORKERS - 1, 60)
        first.stop(signal.SIGKILL)
        second = Router(address, tmp_path / "second.log")
        until(lambda: second.log().count("REDELIVERED") == WORKERS - 1, 60)
        with Consumer(out, collect):
            until(lambda: len(received) == BATCHES, 60)
            assert all(message["type"] == "DATA" for message in received)
            to_router.send(eof(WORKERS - 1))
            until(lambda: len(received) == BATCHES + PARTS, 60)
        assert [m["trace"] for m in received[BATCHES:]] == [
            ["menu", "c1", "0", part] for part in range(PARTS)
        ]
        until(lambda: second.log().count("ACKing TABLE_EOF") == WORKERS, 60)
        time.sleep(0.5)
        second.stop(signal.SIGTERM)
        assert second.process.returncode == 0, second.log()
        left: list[bytes] = []
        with Consumer(to_router, left.append):
            time.sleep(0.5)
        assert left == []
        to_router.delete()
        out.delete()
