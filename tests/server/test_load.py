"""200 clients push and long-poll at once while the server is killed and started again.

No confirmed push is lost, no confirmed ack is delivered again, and memory stays flat.
"""

import asyncio
import statistics
import time
from array import array
from collections.abc import Callable
from itertools import pairwise

import aiohttp
import msgspec
import psutil
import pytest

from ackflow.broker.core.settle import Outcome
from ackflow.broker.requests import Chunk, Mark, PopRequest, PushRequest, Verdict
from ackflow.model import Counts, GroupStats
from ackflow.remote import wire
from ackflow.remote.wire import MSGPACK, Codec, PackedHandout

from .conftest import Process

Start = Callable[..., Process]
HEADERS = {"content-type": MSGPACK, "accept": MSGPACK}
QUEUE, PARTITIONS, LEASE = "load", 8, 5.0
PUSHERS = POLLERS = 100
SPARE = 16 * 1024 * 1024  # what caches may still take up once they have been used for a while
_popped, _outcomes, _stats = Codec(PackedHandout), Codec(list[Outcome]), Codec(GroupStats)


class Load:
    """The clients, and everything they were told."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.pushed: set[bytes] = set()
        self.delivered: set[bytes] = set()
        self.acked: dict[bytes, int] = {}  # by payload, when the lease that acked it began
        self.unsure: set[bytes] = set()  # acks whose answer never came: done, or delivered again
        self.again: list[bytes] = []
        self.counts = Counts()
        self.cut = 0
        self.memory: list[int] = []
        self.pushing = self.polling = True

    async def run(self, seconds: float, kills: int) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(
            self.server.url, connector=connector, timeout=timeout, headers=HEADERS
        ) as self.http:
            pushers = [asyncio.create_task(self._push(n)) for n in range(PUSHERS)]
            pollers = [asyncio.create_task(self._poll(n)) for n in range(POLLERS)]
            watching = asyncio.create_task(self._watch())
            for _ in range(kills):
                await asyncio.sleep(seconds / (kills + 1))
                await asyncio.to_thread(self._kill)
            await asyncio.sleep(seconds / (kills + 1))
            watching.cancel()
            self.pushing = False
            await asyncio.gather(*pushers)
            await self._drained()
            self.polling = False
            await asyncio.gather(*pollers)

    def _kill(self) -> None:
        self.server.kill()
        assert self.server.process.stdout is not None
        self.server.process.stdout.close()
        self.server.start()
        self.memory.clear()

    async def _send(self, path: str, body: bytes) -> bytes | None:
        """The answer, or None when the server went away before it came."""
        try:
            async with self.http.post(path, data=body) as answer:
                data = await answer.read()
                assert answer.status == 200, data
                return data
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            self.cut += 1
            await asyncio.sleep(0.05)
            return None

    async def _push(self, number: int) -> None:
        count = 0
        while self.pushing:
            payload = msgspec.json.encode([number, count])
            count += 1
            chunk = Chunk(
                QUEUE, f"p{number % PARTITIONS}", 0, None, array("i", [len(payload)]), payload
            )
            if await self._send("/v1/push", wire.write(PushRequest([chunk]), MSGPACK)) is not None:
                self.pushed.add(payload)
            await asyncio.sleep(0.02)

    async def _poll(self, number: int) -> None:
        asked = PopRequest(QUEUE, "g", f"c{number}", 10, LEASE)
        body = wire.write(asked, MSGPACK)
        while self.polling:
            answer = await self._send("/v1/pop?wait=2", body)
            if answer is not None:
                popped = _popped.read(answer, MSGPACK)
                if popped.token is not None:
                    await self._take(popped)

    async def _take(self, popped: PackedHandout) -> None:
        payloads = [payload for run in popped.runs for payload in _payloads(run)]
        began = (popped.expires_at or 0) - int(LEASE * 1e6)
        self.delivered.update(payloads)
        # An answer that was long on its way may tell of a hand-out before the one that was acked.
        self.again += [p for p in payloads if began > self.acked.get(p, 1 << 62)]
        marks = [Mark(Verdict("ack", confirm=True))]
        answer = await self._send(
            "/v1/verbs/settle", wire.write((True, (popped.token, marks)), MSGPACK)
        )
        if answer is None:
            self.unsure.update(payloads)
        else:
            (outcome,) = _outcomes.read(answer, MSGPACK)
            if outcome.settled == len(payloads):
                self.acked.update(dict.fromkeys(payloads, began))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            try:
                memory = psutil.Process(self.server.process.pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.memory.append(memory)

    async def _drained(self) -> None:
        """Wait until the server says that everything is settled, or nothing comes any more."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            body = wire.write((False, (QUEUE, "g")), MSGPACK)
            answer = await self._send("/v1/verbs/group_stats", body)
            if answer is not None:
                self.counts = _stats.read(answer, MSGPACK).counts
                if self.counts.lag == 0:
                    return
            await asyncio.sleep(0.2)


def _payloads(run: wire.PackedRun) -> list[bytes]:
    ends = [0, *memoryview(run.ends).cast("i")]
    return [run.data[a:b] for a, b in pairwise(ends)]


def check(load: Load) -> None:
    lost = load.pushed - load.delivered
    assert not lost, f"{len(lost)} confirmed pushes are lost"
    unsettled = load.pushed - load.acked.keys() - load.unsure
    assert not unsettled, f"{len(unsettled)} messages were delivered and never acked"
    told = load.counts
    assert (told.lag, told.dead, told.done) == (0, 0, len(load.delivered)), told
    assert not load.again, f"{len(load.again)} confirmed acks were delivered again"
    assert load.cut > 0, "nobody noticed that the server was killed"
    samples = load.memory[len(load.memory) // 4 :]  # not the start, when caches fill
    third = len(samples) // 3
    before, after = statistics.median(samples[:third]), statistics.median(samples[-third:])
    assert after - before < SPARE, f"memory grew from {before:,.0f} to {after:,.0f}"


def test_200_clients_lose_nothing_while_the_server_is_killed(start_process: Start) -> None:
    load = Load(start_process())
    asyncio.run(load.run(seconds=12.0, kills=2))
    assert len(load.pushed) > 1_000
    check(load)


@pytest.mark.soak
def test_200_clients_lose_nothing_for_a_minute(start_process: Start) -> None:
    load = Load(start_process())
    asyncio.run(load.run(seconds=60.0, kills=2))
    check(load)
