"""Single messages over many connections against Redis, under load generators that are not Python.

Every push is on disk before its answer, here and in Redis with `appendfsync always`.
"""

import json
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import psutil  # type: ignore[import-untyped]

import ackflow

from . import peers, wrk
from .loads import Connection, push_body, request
from .measure import Json, Noise, Plan, folder, seconds
from .report import Row, Table, Target

CONNECTIONS, MORE = 64, 256
SECONDS = 1
SINGLES = 300
ENTRIES = 20_000  # popped and acked at most in one round
LANES = 256  # partitions of the Queen dialect and queues of PushPop, where a lease covers one
JSON, MSGPACK = "application/json", "application/msgpack"
Rates = dict[str, list[float]]


class Push(NamedTuple):
    path: str
    body: bytes
    type: str


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    if missing := wrk.missing() or wrk.redis_missing():
        print(f"\nSingle messages over many connections are left out: {missing}")
        return []
    return [*_throughput(messages[0], plan), _latency(messages[0], plan)]


def _pushes(message: Json) -> dict[str, Push]:
    encode = msgspec.json.encode
    return {
        "native push": Push("/v1/push", push_body([message]), MSGPACK),
        "PushPop push": Push("/queue/pushpop/push", encode({"item": message}), JSON),
        "Queen push": Push(
            "/api/v1/push", encode({"items": [{"queue": "queen", "payload": message}]}), JSON
        ),
    }


def _throughput(message: Json, plan: Plan) -> list[Table]:
    few: Rates = {}
    many: Rates = {}
    redis: Rates = {}
    cpu: Rates = {}
    with (
        Noise() as noise,
        folder() as path,
        peers.ackflow_server(path) as port,
        peers.redis(path) as redis_port,
    ):
        server = _process(port)
        _fill(port, "native", "warm-up", message)
        for number in range(plan.rounds):
            noise.probe()
            _add(redis, "push", _xadd(redis_port, message))
            for what, push in _pushes(message).items():
                before = _cpu(server)
                done = wrk.push(port, *push, CONNECTIONS, SECONDS, path)
                _add(cpu, what, (_cpu(server) - before) / done.requests * 1e6)
                _add(few, what, done.per_second)
                _add(many, what, wrk.push(port, *push, MORE, SECONDS, path).per_second)
            _add(redis, "pop and ack", _xreadgroup_xack(redis_port, message))
            for dialect in ("native", "queen", "pushpop"):
                queue = f"{dialect}-{number}"
                _fill(port, dialect, queue, message)
                before = _cpu(server)
                done = wrk.pop_ack(port, dialect, queue, CONNECTIONS, SECONDS)
                what = f"{_NAMES[dialect]} pop and ack"
                _add(cpu, what, (_cpu(server) - before) / done.requests * 1e6)
                _add(few, what, done.per_second)
    first = Table(f"Single messages, {CONNECTIONS} connections", ("Ackflow", "Redis, always"))
    for what, rates in few.items():
        other = redis["push" if what.endswith("push") else "pop and ack"]
        first.rows.append(Row(what, "1/s", rates, other, Target(1)))
    second = Table("Single pushes by number of connections", (str(MORE), str(CONNECTIONS)))
    second.rows = [Row(what, "1/s", rates, few[what], Target(0.9)) for what, rates in many.items()]
    first.quiet = second.quiet = noise.quiet
    spent = ", ".join(f"{what} {median(values):.0f}" for what, values in cpu.items())
    first.notes = [
        "load by wrk and by redis-benchmark, one thread each; an fsync before the answer to a push",
        "XREADGROUP and XACK are measured one after the other; a third of the XACKs have no effect",
        f"CPU of the server in µs, all threads: {spent}",
        str(noise),
    ]
    return [first, second]


_NAMES = {"native": "native", "queen": "Queen", "pushpop": "PushPop"}


def _add(rates: Rates, what: str, value: float) -> None:
    rates.setdefault(what, []).append(value)


def _xadd(port: int, message: Json) -> float:
    command = ("XADD", "pushed", "*", "d", _text(message))
    rate = wrk.redis(port, CONNECTIONS, 2_000, *command)
    return wrk.redis(port, CONNECTIONS, int(rate * SECONDS) + 1, *command)


def _xreadgroup_xack(port: int, message: Json) -> float:
    """Return pairs per second. redis-benchmark reads no replies, so it acks ids at random."""
    entries = ENTRIES // 2
    wrk.redis_fill(port, "popped", entries, _text(message))
    read = ["XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "popped", ">"]
    ack = ["XACK", "popped", "g", "1-__rand_int__"]
    one = wrk.redis(port, CONNECTIONS, entries, *read)
    other = wrk.redis(port, CONNECTIONS, entries, *ack, keys=entries)
    return 1 / (1 / one + 1 / other)


def _text(message: Json) -> str:
    return json.dumps(message, separators=(",", ":"))


def _fill(port: int, dialect: str, queue: str, message: Json) -> None:
    """Push what a round pops, spread where a lease covers a partition or a queue."""
    with ackflow.connect(f"http://{peers.HOST}:{port}") as q:
        if dialect == "native":
            q.push(queue, [message] * ENTRIES)
            return
        for lane in range(1, LANES + 1):
            some = [{**message, "lane": lane}] * (ENTRIES // LANES)
            if dialect == "queen":
                q.push(queue, some, partition=str(lane))
            else:
                q.push(f"{queue}-{lane}", some)


def _process(port: int) -> psutil.Process:
    children = psutil.Process().children()
    return next(child for child in children if str(port) in child.cmdline())


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _latency(message: Json, plan: Plan) -> Table:
    """Measure single pushes, one over HTTP and one embedded in this process, in turns.

    The first pushes are not measured: an fsync takes longer while the write-ahead log grows.
    """
    over_http, embedded = [], []
    with (
        Noise() as noise,
        folder() as path,
        peers.ackflow_server(path) as port,
        ackflow.connect(path / "embedded.db") as q,
    ):
        push = _pushes(message)["native push"]
        whole = request(push.path, push.body)
        q.push("bench", [message] * ENTRIES)
        _fill(port, "native", "bench", message)
        connection = Connection(port)
        for _ in range(plan.rounds):
            http, here = [], []
            for _ in range(SINGLES):
                http.append(seconds(lambda: connection.ask(whole)) * 1e6)
                here.append(seconds(lambda: q.push("bench", message)) * 1e6)
            over_http.append(median(http))
            embedded.append(median(here))
        connection.close()
    table = Table("A single push, one at a time, p50", ("over HTTP", "embedded"))
    table.rows = [Row("push", "µs", over_http, embedded, Target(1.3, at_least=False))]
    table.quiet = noise.quiet
    table.notes = ["the client of HTTP is a blocking socket in Python", str(noise)]
    return table
