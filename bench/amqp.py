"""AMQP: Ackflow beside RabbitMQ, with the same programs on pika and aio-pika."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from .measure import Json, Noise, Plan, folder
from .peers import HOST, find_spec, free_port, started
from .report import Row, Table, Target

OURS = "Ackflow"
CEILING = "no server"
PEERS = {"RabbitMQ, quorum": "quorum", "RabbitMQ, classic": "classic"}
BAR = 1.5  # beside quorum queues, which sync before the confirm, too
SINGLY = 1_000  # messages of a program that waits for each confirm
MANY = 10_000
PYTHON = {"pika": "pika", "aio_pika": "aio-pika"}


def run(_: Sequence[Json], plan: Plan) -> list[Table]:
    missing = [package for name, package in PYTHON.items() if find_spec(name) is None]
    if missing:
        print(f"\nAMQP is left out: {' and '.join(missing)} is not installed")
        return []
    with Noise() as noise, ExitStack() as stack:
        places = {OURS: (stack.enter_context(_ackflow()), "classic")}
        places[CEILING] = stack.enter_context(_ceiling()), "classic"
        if (rabbit := stack.enter_context(_rabbitmq())) is not None:
            places |= {side: (rabbit, kind) for side, kind in PEERS.items()}
        rounds = min(plan.rounds, 3)
        found = _measure(places, rounds, 1 if plan.rounds > 3 else 4)
    tables = [_table(found, peer, rounds, noise) for peer in PEERS if peer in places]
    return [*tables, _ceiling_table(found, rounds, noise)]


class Found(NamedTuple):
    """What a side and a program measured: messages per second, and CPU in microseconds a message."""

    rates: list[float]
    server: list[float]
    client: list[float]


def _measure(
    places: dict[str, tuple[str, str]], rounds: int, divisor: int
) -> dict[tuple[str, str], Found]:
    from .amqp_sides import PROGRAMS, declare

    found: dict[tuple[str, str], Found] = {}
    for number in range(rounds):
        for what in PROGRAMS:
            count = (SINGLY if "one by one" in what else MANY) // divisor
            for side, (url, kind) in places.items():
                queue = f"bench-{kind}-{number}-{what}"
                declare(url, queue, kind)
                if "consume" in what and side != CEILING:
                    _seconds("pika, windows of 100", url, queue, count)
                server = _listening(url)
                before = _cpu_seconds(server)
                seconds, client = _seconds(what, url, queue, count)
                of_all = found.setdefault((side, what), Found([], [], []))
                of_all.rates.append(count / seconds)
                of_all.server.append((_cpu_seconds(server) - before) / count * 1e6)
                of_all.client.append(client / count * 1e6)
    return found


def _listening(url: str) -> psutil.Process:
    """The process that listens at an address."""
    port = int(url.rstrip("/").rpartition(":")[2])
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid:
            return psutil.Process(one.pid)
    raise RuntimeError(f"nothing listens at {url}")


def _cpu_seconds(server: psutil.Process) -> float:
    times = server.cpu_times()
    return float(times.user + times.system)


def _seconds(what: str, url: str, queue: str, count: int) -> tuple[float, float]:
    """Run a program; returns how long it took, and how much CPU."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.amqp_sides", what, url, queue, str(count)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr[-2000:]}")
    seconds, cpu = map(float, done.stdout.split())
    return seconds, cpu


def _table(found: dict[tuple[str, str], Found], peer: str, rounds: int, noise: Noise) -> Table:
    table = Table(f"AMQP: Ackflow and {peer} queues", (OURS, peer))
    target = Target(BAR) if PEERS[peer] == "quorum" else None
    whats = [what for side, what in found if side == OURS]
    for what in whats:
        rates = found[OURS, what].rates, found[peer, what].rates
        table.rows.append(Row(what, "messages/s", *rates, target))
    for what in whats:
        cpu = found[OURS, what].server, found[peer, what].server
        table.rows.append(Row(f"{what}: CPU of the server", "us", *cpu))
    for what in whats:  # how busy the client is; near 1, no server can make it faster
        busy = [
            [rate * cpu / 1e6 for rate, cpu in zip(one.rates, one.client, strict=True)]
            for one in (found[OURS, what], found[peer, what])
        ]
        table.rows.append(Row(f"{what}: share of a core that the client uses", "", *busy))
    for what in whats:
        cpu = found[OURS, what].client, found[peer, what].client
        table.rows.append(Row(f"{what}: CPU of the client", "us", *cpu))
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {rounds} rounds; one client process, on the same machine; 200 bytes a message",
        "every publication is persistent, and Ackflow syncs before the confirm",
        "one by one: each message waits for its confirm; consume and ack: prefetch 100",
        "CPU per message; a client that uses a whole core is what limits the rate",
        str(noise),
    ]
    return table


def _ceiling_table(found: dict[tuple[str, str], Found], rounds: int, noise: Noise) -> Table:
    """How much of what the clients can do at all, with a server that only answers, is reached."""
    table = Table("AMQP: Ackflow and the ceiling of the clients", (OURS, CEILING))
    for what in [what for side, what in found if side == OURS]:
        ours, most = found[OURS, what].rates, found[CEILING, what].rates
        table.rows.append(Row(what, "messages/s", ours, most))
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {rounds} rounds; the same programs",
        "no server: a program that only answers, a window with one confirm; nothing is stored",
        str(noise),
    ]
    return table


@contextmanager
def _ceiling() -> Iterator[str]:
    with folder() as path:
        port = free_port()
        with started([sys.executable, "-m", "bench.amqp_ceiling", str(port)], port, path):
            yield f"amqp://guest:guest@{HOST}:{port}/"


@contextmanager
def _ackflow() -> Iterator[str]:
    with folder() as path:
        port, http = free_port(), free_port()
        command = [sys.executable, "-m", "ackflow", "serve", "--db", str(path / "bench.db")]
        with started([*command, "--port", str(http), "--amqp-port", str(port)], port, path):
            yield f"amqp://guest:guest@{HOST}:{port}/"


@contextmanager
def _rabbitmq() -> Iterator[str | None]:
    """Run Debian's RabbitMQ as it is by default."""
    from tests.rabbitmq.real import RabbitMQ
    from tests.rabbitmq.real import found as installed

    if not installed():
        print("\nRabbitMQ is not installed and left out (apt-get install rabbitmq-server)")
        yield None
        return
    with folder() as path:
        server = RabbitMQ(Path(path), erlang=f"+S {os.cpu_count()}")
        try:
            yield f"amqp://guest:guest@{HOST}:{server.port}/"
        finally:
            server.stop()
