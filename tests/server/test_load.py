"""200 long polls, 64 pushers and 20 slow consumers at once, through SIGKILL and SIGTERM.

No confirmed push is lost, no confirmed ack is delivered again, SIGTERM leaves no request without an
answer, and memory stays flat.
"""

import asyncio
import contextlib
import socket
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
QUEUE, PARTITIONS, LEASE = "load", 8, 6.0
PUSHERS, POLLERS, SLOW = 64, 200, 20
PADDING = "x" * 500
SPARE = 16 * 1024 * 1024  # what caches may still take up in a run of some seconds
_popped, _outcomes, _stats = Codec(PackedHandout), Codec(list[Outcome]), Codec(GroupStats)
Id = tuple[int, int]


class Load:
    """The clients, and everything they were told."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.pushed: set[Id] = set()
        self.delivered: set[Id] = set()
        self.acked: dict[Id, int] = {}  # when the lease that acked it began
        self.unsure: set[Id] = set()  # acks whose answer never came: done, or delivered again
        self.again: list[Id] = []
        self.counts = Counts()
        self.cut = 0
        self.unanswered: list[str] = []  # requests that SIGTERM left without an answer
        self.memory: list[tuple[float, int]] = []
        self.pushing = self.polling = True
        self.terminating = False

    async def run(self, seconds: float, pause: float) -> None:
        """Load the server, measure its memory, kill it, then end it by SIGTERM, and drain."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(
            self.server.url, connector=connector, timeout=timeout, headers=HEADERS
        ) as self.http:
            pushers = [asyncio.create_task(self._push(n, pause)) for n in range(PUSHERS)]
            pollers = [asyncio.create_task(self._poll(n)) for n in range(POLLERS)]
            pollers += [asyncio.create_task(self._poll_slowly(n)) for n in range(SLOW)]
            await self._watch(seconds)
            await asyncio.to_thread(self.server.restart)
            await asyncio.sleep(2.0)
            self.terminating = True
            assert await asyncio.to_thread(self.server.stop) == 0
            assert self.server.process.stdout is not None
            self.server.process.stdout.close()
            self.terminating = False
            await asyncio.to_thread(self.server.start)
            await asyncio.sleep(1.0)
            self.pushing = False
            await asyncio.gather(*pushers)
            await self._drained()
            self.polling = False
            await asyncio.gather(*pollers)

    async def _watch(self, seconds: float) -> None:
        process = psutil.Process(self.server.process.pid)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            self.memory.append((now, process.memory_info().rss))
            await asyncio.sleep(0.2)

    async def _send(self, path: str, body: bytes) -> bytes | None:
        """The answer, or None when the server went away before it came."""
        try:
            async with self.http.post(path, data=body) as answer:
                data = await answer.read()
                assert answer.status == 200, data
                return data
        except aiohttp.ClientConnectorError:  # it was not sent
            await asyncio.sleep(0.05)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            self._cut(f"{path}: {error!r}")
            await asyncio.sleep(0.05)
        return None

    def _cut(self, what: str) -> None:
        self.cut += 1
        if self.terminating:
            self.unanswered.append(what)

    async def _push(self, number: int, pause: float) -> None:
        count = 0
        while self.pushing:
            payload = msgspec.json.encode([number, count, PADDING])
            chunk = Chunk(
                QUEUE, f"p{number % PARTITIONS}", 0, None, array("i", [len(payload)]), payload
            )
            if await self._send("/v1/push", wire.write(PushRequest([chunk]), MSGPACK)) is not None:
                self.pushed.add((number, count))
            count += 1
            await asyncio.sleep(pause)

    async def _poll(self, number: int) -> None:
        body = wire.write(PopRequest(QUEUE, "g", f"c{number}", 10, LEASE), MSGPACK)
        while self.polling:
            answer = await self._send("/v1/pop?wait=2", body)
            if answer is not None:
                popped = _popped.read(answer, MSGPACK)
                if popped.token is not None:
                    await self._take(popped)

    async def _poll_slowly(self, number: int) -> None:
        """Ask for many messages, read them in small pieces, and settle them late."""
        body = wire.write(PopRequest(QUEUE, "g", f"s{number}", 200, LEASE), MSGPACK)
        while self.polling:
            try:
                answer = await self._read_slowly(body)
            except OSError as error:
                if not isinstance(error, ConnectionRefusedError):
                    self._cut(f"a slow pop: {error!r}")
                answer = None
            if answer is not None:
                popped = _popped.read(answer, MSGPACK)
                if popped.token is not None:
                    await asyncio.sleep(1.0)
                    await self._take(popped)
            await asyncio.sleep(0.2)

    async def _read_slowly(self, body: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(sock, ("127.0.0.1", self.server.port))
            head = (
                b"POST /v1/pop?wait=2 HTTP/1.1\r\nhost: localhost\r\ncontent-type: %b\r\n"
                b"accept: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            )
            await loop.sock_sendall(
                sock, head % (MSGPACK.encode(), MSGPACK.encode(), len(body)) + body
            )
            got = b""
            while data := await loop.sock_recv(sock, 4096):
                got += data
                await asyncio.sleep(0.01)
        head, end, answer = got.partition(b"\r\n\r\n")
        if not end:
            raise ConnectionResetError("closed without an answer")
        assert head.startswith(b"HTTP/1.1 200 "), got[:500]
        return answer

    async def _take(self, popped: PackedHandout) -> None:
        payloads = [_id(payload) for run in popped.runs for payload in _payloads(run)]
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

    async def _drained(self) -> None:
        """Wait until the server says that everything is settled, or nothing comes any more."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            body = wire.write((False, (QUEUE, "g")), MSGPACK)
            answer = await self._send("/v1/verbs/group_stats", body)
            if answer is not None:
                self.counts = _stats.read(answer, MSGPACK).counts
                if self.counts.lag == 0:
                    return
            await asyncio.sleep(0.2)

    def megabytes(self, start: float, end: float) -> float:
        """The median of the server's memory from one second of the run to another."""
        with contextlib.suppress(statistics.StatisticsError):
            return statistics.median(rss for at, rss in self.memory if start <= at < end) / 1e6
        return 0.0


def _payloads(run: wire.PackedRun) -> list[bytes]:
    ends = [0, *memoryview(run.ends).cast("i")]
    return [run.data[a:b] for a, b in pairwise(ends)]


def _id(payload: bytes) -> Id:
    number, count, _ = msgspec.json.decode(payload)
    return number, count


def check(load: Load) -> None:
    lost = load.pushed - load.delivered
    assert not lost, f"{len(lost)} confirmed pushes are lost"
    unsettled = load.pushed - load.acked.keys() - load.unsure
    assert not unsettled, f"{len(unsettled)} messages were delivered and never acked"
    told = load.counts
    assert (told.lag, told.dead, told.done) == (0, 0, len(load.delivered)), told
    assert not load.again, f"{len(load.again)} confirmed acks were delivered again"
    assert not load.unanswered, load.unanswered[:5]
    assert load.cut > 0, "no client noticed that the server was killed"


def test_284_clients_lose_nothing_through_sigkill_and_sigterm(start_process: Start) -> None:
    load = Load(start_process())
    asyncio.run(load.run(seconds=6.0, pause=0.05))
    assert len(load.pushed) > 500
    check(load)
    assert (load.megabytes(4.5, 6) - load.megabytes(2, 3.5)) * 1e6 < SPARE


@pytest.mark.soak
def test_284_clients_lose_nothing_for_ten_minutes_and_memory_is_flat(start_process: Start) -> None:
    load = Load(start_process())
    asyncio.run(load.run(seconds=600.0, pause=0.1))
    check(load)
    minutes = [load.megabytes(60.0 * n, 60.0 * (n + 1)) for n in range(10)]
    print(f"{len(load.pushed):,} pushed; MB by minute: {', '.join(f'{m:.1f}' for m in minutes)}")
    assert abs(minutes[9] - minutes[2]) <= 0.05 * minutes[2], minutes
