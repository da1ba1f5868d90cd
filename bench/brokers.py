"""Several brokers on one PostgreSQL server, and many clients that push one message each.

    python -m bench.brokers URL QUEUE THREADS SECONDS

runs one process of it: it waits for a line on its input, works, and prints how much it did.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]
import psycopg

import ackflow

from . import slow_sync, wrk
from .measure import Noise, Plan, folder, make_messages
from .peers import free_port
from .report import Row, Table, Target

SECONDS = 3.0
CLIENTS = 64
TABLE = """drop table if exists m64; create table m64 (id bigint generated always as identity primary key,
    body text, until timestamptz not null default '-infinity'); create index on m64 (until, id)"""
PLAIN = "SKIP LOCKED"
STEADY = 0.97  # "never slower": less than the scatter of repeated runs
SHARED_WAIT = 1.6  # of two brokers, where each waits for the disk most of the time


def cycles(url: str, queue: str) -> Callable[[], object]:
    """Push a message, pop one and ack it."""
    q = ackflow.connect(url, consumer=secrets.token_hex(4))
    message = make_messages(1)[0]

    def cycle() -> None:
        q.push(queue, message)
        q.ack(q.pop(queue))

    return cycle


def work(url: str, queue: str, threads: str, seconds: str) -> None:
    calls = [cycles(url, queue) for _ in range(int(threads))]
    for call in calls:
        call()  # warm
    print("ready", flush=True)
    sys.stdin.readline()
    until, counts = time.monotonic() + float(seconds), [0] * len(calls)

    def run(at: int) -> None:
        while time.monotonic() < until:
            calls[at]()
            counts[at] += 1

    running = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for one in running:
        one.start()
    for one in running:
        one.join()
    print(sum(counts), flush=True)


def rate(url: str, queues: Sequence[str], threads: int, seconds: float) -> float:
    """The work of one process for each queue, a second."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.brokers", url, queue, str(threads), str(seconds)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for queue in queues
        ]  # fmt: skip
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        total = sum(int(process.stdout.readline()) for process in processes if process.stdout)
    return total / seconds


def brokers(url: str, plan: Plan) -> Table:
    """Cycles of 1, 2 and 4 brokers, each with a queue of its own, and all on one queue."""
    found: dict[str, list[float]] = {}
    schema = f"{url}?schema=bench_{secrets.token_hex(4)}"
    with Noise() as noise:
        for _ in range(plan.rounds):
            for n in (1, 2, 4):
                own = rate(schema, [f"own{at}" for at in range(n)], 1, SECONDS)
                found.setdefault(f"own queues, {n} brokers", []).append(own)
            for n in (1, 2):
                shared = rate(schema, ["shared"] * n, 1, SECONDS)
                found.setdefault(f"one queue, {n} brokers", []).append(shared)
    two = SHARED_WAIT if slow_sync.MICROSECONDS in os.environ else STEADY
    table = Table("PostgreSQL: several brokers against one", ("several", "one"))
    for what, alone, bound in (
        ("own queues, 2 brokers", "own queues, 1 brokers", two),
        ("own queues, 4 brokers", "own queues, 1 brokers", STEADY),
        ("one queue, 2 brokers", "one queue, 1 brokers", 0.8),
    ):
        table.rows.append(Row(what, "cycles/s", found[what], found[alone], Target(bound)))
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {plan.rounds} rounds of {SECONDS:g} s; each broker is a process",
        str(noise),
    ]
    return table


def by_pgbench(program: Path, url: str, script: Path) -> float:
    """Inserts a second by 64 connections of a client in C."""
    body = json.dumps(make_messages(1)[0]).replace("'", "''")
    script.write_text(f"insert into m64 (body) values ('{body}');\n")
    command = [str(program), "-n", "-M", "prepared", f"-c{CLIENTS}", "-j2", f"-T{SECONDS:.0f}"]
    ran = subprocess.run(
        [*command, "-f", str(script), url], check=True, capture_output=True, text=True
    )
    line = next(line for line in ran.stdout.splitlines() if line.startswith("tps = "))
    return float(line.split()[2])


def clients(url: str, plan: Plan, pgbench: Path) -> list[Table]:
    """Pushes of one message by 64 clients over HTTP, against 64 connections to a table.

    Both loads are programs in C, wrk and pgbench: clients in Python would take most of the CPU.
    """
    if missing := wrk.missing() or (None if pgbench.exists() else f"there is no {pgbench}"):
        print(f"64 clients of PostgreSQL are left out: {missing}")
        return []
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE)
    ours: list[float] = []
    plain: list[float] = []
    cpu: list[float] = []
    body = json.dumps({"items": [{"queue": "many", "payload": make_messages(1)[0]}]}).encode()
    schema = f"{url}?schema=bench_{secrets.token_hex(4)}"
    port = free_port()
    serve = [sys.executable, "-m", "bench.serve", schema, str(port)]
    with Noise() as noise, folder() as place, subprocess.Popen(serve) as server:
        try:
            _wait_for(port)
            for number in range(-1, plan.rounds):  # the first is not counted
                before = _cpu(server.pid)
                pushed = wrk.push(port, "/api/v1/push", body, "application/json", CLIENTS,
                                  round(SECONDS), place)  # fmt: skip
                spent = _cpu(server.pid) - before
                inserted = by_pgbench(pgbench, url, place / "insert.sql")
                if number >= 0:
                    ours.append(pushed.per_second)
                    plain.append(inserted)
                    cpu.append(spent / pushed.requests * 1e6)
        finally:
            server.terminate()
    table = Table("PostgreSQL: 64 clients that push one message", ("Ackflow over HTTP", PLAIN))
    table.rows = [Row("push of one", "msg/s", ours, plain, Target(3.0))]
    table.quiet = noise.quiet
    table.notes = [
        f"load by wrk and by pgbench; CPU of the server per push: {median(cpu):.0f} µs",
        str(noise),
    ]
    return [table]


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    work(*sys.argv[1:])
