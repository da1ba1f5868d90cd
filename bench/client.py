"""The HTTP client, with encoding and decoding, against redis-py and prebuilt requests."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import urllib3

import ackflow
from ackflow import aio

from . import peers
from .engine import Rates
from .loads import QUEUE, push_body
from .measure import Json, Noise, Plan, folder, seconds
from .ours import Ackflow
from .peers import HOST
from .report import Row, Table, Target

BATCH = 1000
TASKS = 16


class Client(Ackflow):
    """Ackflow through its HTTP client."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.session = ackflow.connect(f"http://{HOST}:{port}")
        self.session.configure(name, keep_seconds=0)


class Redis:
    """Redis Streams through redis-py, as its users write it."""

    def __init__(self, port: int, name: str) -> None:
        import redis

        self._redis: Any = redis.Redis(HOST, port)
        self._name = name
        self._redis.xgroup_create(name, "g", id="0", mkstream=True)

    def push(self, messages: Sequence[Json]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for message in messages:
            pipeline.xadd(self._name, {"d": json.dumps(message)})
        pipeline.execute()

    def take(self, batch: int) -> list[tuple[bytes, Json]]:
        ((_, items),) = self._redis.xreadgroup("g", "c", {self._name: ">"}, count=batch)
        return [(id, json.loads(fields[b"d"])) for id, fields in items]

    def ack(self, taken: list[tuple[bytes, Json]]) -> None:
        self._redis.xack(self._name, "g", *(id for id, _ in taken))

    def ack_each(self, taken: Any, order: Sequence[int]) -> None:
        raise NotImplementedError

    def catch_up(self) -> None:
        """Does nothing: messages are not trimmed."""

    def close(self) -> None:
        self._redis.close()


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    with folder() as path:
        return [*_against_redis(messages, plan, path), _calls(messages, plan, path)]


def _against_redis(messages: Sequence[Json], plan: Plan, path: Path) -> list[Table]:
    if missing := peers.redis_missing():
        print(f"\nRedis is left out: {missing}")
        return []
    case = Rates(messages[: min(len(messages), 50_000)], BATCH)
    rates: dict[str, dict[str, list[float]]] = {}
    with Noise() as noise, peers.ackflow_server(path) as ours, peers.redis(path) as redis:
        for number in range(plan.rounds):
            noise.probe()
            for name, queue in (
                ("ours", Client(ours, f"q{number}")),
                ("redis", Redis(redis, f"q{number}")),
            ):
                for what, value in case(queue).items():
                    rates.setdefault(what, {}).setdefault(name, []).append(value)
                queue.close()
    table = Table("Client over HTTP against redis-py", ("Ackflow", "Redis, always"))
    targets = iter((Target(4), Target(3)))
    table.rows = [
        Row(what, "msg/s", sides["ours"], sides["redis"], next(targets))
        for what, sides in rates.items()
    ]
    table.quiet, table.notes = noise.quiet, [str(noise)]
    return [table]


def _calls(messages: Sequence[Json], plan: Plan, path: Path) -> Table:
    """Measure the client's overhead per request, and the throughput of sixteen tasks against one."""
    own, bare, many, one = [], [], [], []
    n = plan.singles
    home = path / "calls"
    home.mkdir()
    with Noise() as noise, peers.ackflow_server(home) as port:
        session = ackflow.connect(f"http://{HOST}:{port}")
        for _ in range(plan.rounds):
            own.append(seconds(lambda: [session.push(QUEUE, m) for m in messages[:n]]) / n * 1e6)
            bare.append(_bare(port, messages, n) / n * 1e6)
            one.append(n / asyncio.run(_tasks(port, messages[:n], 1)))
            many.append(n / asyncio.run(_tasks(port, messages[:n], TASKS)))
        session.close()
    table = Table("One message at a time over HTTP", ("client", "against"))
    table.rows = [
        Row("a push, against bare urllib3", "µs", own, bare, Target(1.5, at_least=False)),
        Row(f"{TASKS} async tasks, against one", "msg/s", many, one, Target(3)),
    ]
    table.quiet, table.notes = noise.quiet, [str(noise)]
    return table


def _bare(port: int, messages: Sequence[Json], n: int) -> float:
    pool = urllib3.PoolManager()
    body = push_body(messages[:1])
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    url = f"http://{HOST}:{port}/v1/push"
    return seconds(
        lambda: [pool.request("POST", url, body=body, headers=headers) for _ in range(n)]
    )


async def _tasks(port: int, messages: Sequence[Json], tasks: int) -> float:
    async with await aio.connect(f"http://{HOST}:{port}") as q:
        await q.push(QUEUE, messages[0])
        loop = asyncio.get_running_loop()
        start = loop.time()

        async def work(which: Sequence[Json]) -> None:
            for message in which:
                await q.push(QUEUE, message)

        await asyncio.gather(*(work(messages[at::tasks]) for at in range(tasks)))
        return loop.time() - start
