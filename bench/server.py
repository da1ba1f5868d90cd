"""The server against Redis with fsync, itself without the store, and fixed earlier figures."""

import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

from . import peers, singles
from .loads import (
    Connection,
    OverHttp,
    OverRedis,
    pop_body,
    push_body,
    request,
    side_by_side,
    together,
)
from .measure import Json, Noise, Plan, folder, quantile, seconds
from .report import Row, Table, Target

BATCH = 1000
CLIENTS = 64


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    return [
        *singles.run(messages, plan),
        *_against_redis(messages, plan),
        _pushers(messages, plan),
        _latencies(messages, plan),
    ]


def _against_redis(messages: Sequence[Json], plan: Plan) -> list[Table]:
    if missing := peers.redis_missing():
        print(f"\nRedis is left out: {missing}")
        return []
    some = messages[: min(len(messages), 50_000)]
    rates: dict[str, dict[str, list[float]]] = {"ours": {}, "redis": {}}
    with (
        Noise() as noise,
        folder() as path,
        peers.ackflow_server(path) as ours,
        peers.redis(path) as redis,
    ):
        for _ in range(plan.rounds):
            noise.probe()
            for name, made in (
                ("ours", OverHttp(ours, some, BATCH)),
                ("redis", OverRedis(redis, some, BATCH)),
            ):
                side = rates[name]
                side.setdefault("push", []).append(len(some) / seconds(made.push))
                side.setdefault("drain", []).append(len(some) / seconds(made.drain))
                made.close()
    table = Table("Server, prebuilt bodies, against Redis", ("Ackflow", "Redis, always"))
    mine, theirs = rates["ours"], rates["redis"]
    table.rows = [
        Row("push, 1,000 at a time", "msg/s", mine["push"], theirs["push"], Target(5)),
        Row("pop and ack, 1,000 at a time", "msg/s", mine["drain"], theirs["drain"], Target(3)),
    ]
    table.quiet = noise.quiet
    table.notes = [
        "Redis Streams: XADD, XREADGROUP and XACK; appendfsync always; acked entries stay in Redis",
        str(noise),
    ]
    return [table]


def _pushers(messages: Sequence[Json], plan: Plan) -> Table:
    """Measure concurrent single pushes, which share commits, against the bare server."""
    body = push_body(messages[:1])
    pushed, bare, merged = [], [], []
    with Noise() as noise, folder() as path, peers.ackflow_server(path) as port:
        connection = Connection(port)
        for _ in range(plan.rounds):
            commits, verbs = _writer(connection)
            pushed.append(together(port, request("/v1/push", body), CLIENTS, 1.5))
            after = _writer(connection)
            merged.append((after[1] - verbs) / max(1, after[0] - commits))
            bare.append(together(port, request("/bench/echo", body), CLIENTS, 1.5))
        connection.close()
    table = Table(f"{CLIENTS} clients push one message each at a time", ("push", "no store"))
    table.rows = [Row("requests", "req/s", pushed, bare, Target(0.4))]
    table.quiet = noise.quiet
    holds = "holds" if median(merged) >= 16 else "MISSED"
    table.notes = [f"{median(merged):.0f} pushes per commit (>= 16 {holds})", str(noise)]
    return table


def _writer(connection: Connection) -> tuple[float, float]:
    """Return the commits and verbs so far from the server's metrics."""
    whole = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    values = {}
    for line in connection.ask(whole).decode().splitlines():
        if line.startswith(("ackflow_commits", "ackflow_verbs")):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values["ackflow_commits_total"], values["ackflow_verbs_total"]


RATES = {"single acks": (1, 2_000), "acks in batches of 10": (10, 20_000)}
SEEDS = {
    "single ack": (10_000, 50_000),
    "batch ack of 10": (20_000, 80_000),
    "batch ack of 100": (50_000, 150_000),
    "PopWithAck": (2_000, 5_000),
    "Acknowledge": (3_000, 5_000),
}


def _latencies(messages: Sequence[Json], plan: Plan) -> Table:
    table = Table("Latency over HTTP, p50", ("Ackflow", "the seed's best"))
    with Noise() as noise, folder() as path, peers.ackflow_server(path) as port:
        connection = Connection(port)
        ask = connection.ask
        for n, what in ((1, "single ack"), (10, "batch ack of 10"), (100, "batch ack of 100")):
            times = _queen_acks(ask, n, 100)
            table.rows.append(_against(what, times))
        for what, (n, best) in RATES.items():
            per_second = [_ack_rate(port, ask, n) for _ in range(plan.rounds)]
            seed = [float(best)] * len(per_second)
            table.rows.append(Row(what, "msg/s", per_second, seed, Target(1)))
        pops, acks = _pushpop(ask, 100)
        table.rows += [_against("PopWithAck", pops), _against("Acknowledge", acks)]
        woken = _woken(port, messages, 50)
        connection.close()
    table.quiet = noise.quiet
    table.notes = [
        f"a waiting pop is answered {quantile(woken, 0.5):.0f} µs after the push began, p99 "
        f"{quantile(woken, 0.99):.0f} µs",
        str(noise),
    ]
    return table


def _against(what: str, times: list[float]) -> Row:
    best, _ = SEEDS[what]
    return Row(what, "µs", times, [float(best)] * len(times), Target(1, at_least=False))


def _queen_acks(ask: Callable[[bytes], bytes], n: int, rounds: int) -> list[float]:
    """Measure acks of the Queen dialect, n per request."""
    times = []
    for round in range(rounds):
        (whole,) = _held(ask, f"acks-{n}-{round}", n, 1)
        times.append(seconds(lambda whole=whole: ask(whole)) * 1e6)  # type: ignore[misc]
    return times


def _ack_rate(port: int, ask: Callable[[bytes], bytes], n: int) -> float:
    """Measure acks per second with clients that send n acks per request in sequence."""
    each = 3_200 // CLIENTS
    lists = [_held(ask, f"rate-{n}-{time.perf_counter_ns()}", n, each) for _ in range(CLIENTS)]
    return CLIENTS * each * n / side_by_side(port, lists)


def _held(ask: Callable[[bytes], bytes], queue: str, n: int, times: int) -> list[bytes]:
    """Push and lease messages; return the requests that ack n of them each."""
    import msgspec

    def post(path: str, body: object) -> bytes:
        return request(path, msgspec.json.encode(body), "application/json")

    items = [{"queue": queue, "payload": i} for i in range(n * times)]
    ask(post("/api/v1/push", {"items": items}))
    popped = msgspec.json.decode(ask(_get(f"/api/v1/pop/queue/{queue}?batch={n * times}")))
    acks = [
        {k: m[k] for k in ("transactionId", "partitionId", "leaseId")} for m in popped["messages"]
    ]
    if n == 1:
        return [post("/api/v1/ack", ack) for ack in acks]
    some = [acks[at : at + n] for at in range(0, len(acks), n)]
    return [post("/api/v1/ack/batch", {"acknowledgments": part}) for part in some]


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def _pushpop(ask: Callable[[bytes], bytes], rounds: int) -> tuple[list[float], list[float]]:
    import msgspec

    pops, acks = [], []
    push = request("/queue/p/push", b'{"item":{"id":1}}', "application/json")
    pop = request("/queue/p/pop?require_ack=true", b"", "application/json")
    for _ in range(rounds):
        ask(push)
        start = time.perf_counter()
        answer = ask(pop)
        pops.append((time.perf_counter() - start) * 1e6)
        body = msgspec.json.encode({"lock_id": msgspec.json.decode(answer)["lock_id"]})
        whole = request("/queue/p/acknowledge", body, "application/json")
        acks.append(seconds(lambda whole=whole: ask(whole)) * 1e6)  # type: ignore[misc]
    return pops, acks


def _woken(port: int, messages: Sequence[Json], rounds: int) -> list[float]:
    """Measure the time from a push to the response of a waiting pop."""
    waiting, pushing = Connection(port), Connection(port)
    pop, push = (
        request("/v1/pop?wait=10", pop_body(1)),
        request("/v1/push", push_body(messages[:1])),
    )
    times = []
    for _ in range(rounds):
        done: list[float] = []
        thread = threading.Thread(target=lambda done=done: done.append(_asked(waiting, pop)))  # type: ignore[misc]
        thread.start()
        time.sleep(0.02)
        start = time.perf_counter()
        pushing.ask(push)
        thread.join()
        times.append((done[0] - start) * 1e6)
    waiting.close()
    pushing.close()
    return times


def _asked(connection: Connection, whole: bytes) -> float:
    connection.ask(whole)
    return time.perf_counter()
