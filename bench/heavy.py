"""A push while the server does something large, against a push to an idle server beside it."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import ackflow

from . import peers
from .loads import HOST, Connection, push_body, request
from .measure import FULL, Json, Noise, Plan, batches, folder, quantile
from .report import Row, Table, Target

CLEARED, DELETED, EXPIRED = "clear", "delete", "retention"
PARTITIONS = {CLEARED: 40_000, DELETED: 40_000, EXPIRED: 20_000}
EACH = {CLEARED: 10, DELETED: 10, EXPIRED: 60}
PARTITIONS_AT_ONCE = 100
READ_SECONDS = 6.0
LEAST_PUSHES = 300
LIMIT = Target(3, at_least=False)
CLIENTS = 5


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    scale = 1 if plan == FULL else 20
    table = Table("p99 of a push while the server does something large", ("busy", "idle"))
    with (
        Noise() as noise,
        folder() as here,
        folder() as there,
        peers.ackflow_server(here) as busy,
        peers.ackflow_server(there) as idle,
    ):
        path = here / "ackflow" / "ackflow.db"
        lanes, stored = _fill(path, messages, scale)
        push = request("/v1/push", push_body(messages[:1]))
        sides = Connection(busy), Connection(idle)
        for what, work in _work(busy, path).items():
            noise.probe()
            first, second = _pushes(sides, push, work)
            table.rows.append(
                Row(what, "ms", [quantile(first, 0.99)], [quantile(second, 0.99)], LIMIT)
            )
            table.notes.append(
                f"{what}: {len(first):,} pushes, longest {max(first):.1f} ms; idle {max(second):.1f} ms"
            )
        for side in sides:
            side.close()
    table.quiet = noise.quiet
    table.notes += [
        f"{lanes:,} partitions and {stored:,} messages; pushes of 200 bytes to both servers in turns, "
        f"reads by {CLIENTS} clients, one after another",
        str(noise),
    ]
    return [table]


def _fill(path: Path, messages: Sequence[Json], scale: int) -> tuple[int, int]:
    lanes = stored = 0
    with ackflow.connect(path, upkeep=False) as q:
        for queue, partitions in PARTITIONS.items():
            q.group(queue, "g")
            names = [f"p{n}" for n in range(partitions // scale)]
            for some in batches(names, PARTITIONS_AT_ONCE):
                of_each = messages[: EACH[queue]]
                q.push(
                    queue, [ackflow.Item(data=m, partition=name) for name in some for m in of_each]
                )
            lanes += len(names)
            stored += len(names) * EACH[queue]
            q.ack(q.pop(queue, group="g", batch=10_000))
    return lanes, stored


def _work(port: int, path: Path) -> dict[str, Callable[[], object]]:
    """What the server does meanwhile; reads are repeated by several clients."""

    def backup() -> None:
        with ackflow.connect(path, upkeep=False) as q:
            q.backup(str(path.parent / f"{time.monotonic_ns()}.db"))

    def search() -> None:
        with ackflow.connect(f"http://{HOST}:{port}") as q:
            q.search(CLEARED, "text that no message has", seconds=2.0)

    def retention() -> None:
        with ackflow.connect(f"http://{HOST}:{port}") as q:
            q.configure(EXPIRED, retention_seconds=1)
            while q.queue_stats(EXPIRED).messages:
                time.sleep(0.5)

    return {
        "nothing": lambda: time.sleep(READ_SECONDS),
        "/metrics": lambda: _by_clients(lambda: _call(port, "GET", "/metrics")),
        "/api/v1/status": lambda: _by_clients(lambda: _call(port, "GET", "/api/v1/status")),
        "search": lambda: _by_clients(search),
        "backup": lambda: _for_a_while(backup),
        "seek": lambda: _call(
            port, "POST", f"/api/v1/consumer-groups/g/queues/{CLEARED}/seek", b'{"toEnd":true}'
        ),
        "clear": lambda: _call(port, "DELETE", f"/api/v1/queues/{CLEARED}/clear"),
        "delete": lambda: _call(port, "DELETE", f"/api/v1/resources/queues/{DELETED}"),
        "retention": retention,
    }


def _call(port: int, method: str, path: str, body: bytes | None = None) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=600)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status not in (200, 503):
        raise RuntimeError(f"{path} answered {answer.status}")


def _for_a_while(call: Callable[[], object]) -> None:
    until = time.monotonic() + READ_SECONDS
    while time.monotonic() < until:
        call()


def _by_clients(call: Callable[[], object]) -> None:
    clients = [threading.Thread(target=_for_a_while, args=(call,)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def _pushes(
    sides: tuple[Connection, Connection], push: bytes, work: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Push to both servers in turns while the work runs; returns the times in milliseconds."""
    found: tuple[list[float], list[float]] = [], []
    with _running(work) as running:
        while running.is_alive() or len(found[0]) < LEAST_PUSHES:
            for connection, times in zip(sides, found, strict=True):
                start = time.perf_counter()
                connection.ask(push)
                times.append(1e3 * (time.perf_counter() - start))
            time.sleep(0.001)
    return found


@contextmanager
def _running(work: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        with suppress(RuntimeError):
            thread.join()
