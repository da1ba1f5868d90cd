"""Workers: tasks with an empty body, from push to done, beside other task queues for Python."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from .measure import Json, Noise, Plan, folder
from .peers import HOST, find_spec, free_port, redis_missing, started
from .report import Row, Table, Target

OURS = "Ackflow"
SINGLY = "Ackflow, one by one"
LIMIT_PERCENT = 1.0
FAST = (OURS, "dramatiq")  # the others take minutes for as many tasks
SLOW_TASKS = 2_000
IDLE_SECONDS = 10.0
IDLE = """
from ackflow.worker import Worker
worker = Worker("idle.db")

@worker.task("bench")
def noop(n: int) -> None: ...
"""
# What each peer is installed as, and what it does to a push that returned.
PEERS = {
    "dramatiq": ("dramatiq", "Redis does not sync a push (its default)"),
    "Celery": ("celery", "Redis does not sync a push (its default)"),
    "huey": (
        "huey",
        "SQLite syncs a push, and again when a task is taken, which is not kept until it is done",
    ),
    "procrastinate": ("procrastinate", "PostgreSQL syncs a push; all tasks in one statement"),
}


def run(_: Sequence[Json], plan: Plan) -> list[Table]:
    tasks = 10_000 if plan.rounds > 3 else 2_000
    rounds = min(plan.rounds, 3)
    with Noise() as noise, ExitStack() as stack:
        places = _places(stack)
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            for side in (OURS, SINGLY, *places):
                some = _rates(side, places.get(side), _tasks(side, tasks))
                found.setdefault(side, []).append(some)
    tables = [_table(found, peer, rounds, tasks, noise) for peer in places]
    if places:
        fastest = max(places, key=lambda peer: _median(found[peer], "total"))
        row = next(table for table in tables if table.sides[1] == fastest).rows[0]
        row.target = Target(3.0)
    return [*tables, _pushed_singly(found, tasks, noise), _idle()]


def _table(
    found: dict[str, list[dict[str, float]]], peer: str, rounds: int, tasks: int, noise: Noise
) -> Table:
    table = Table(f"Workers: Ackflow and {peer}", (OURS, peer))
    for what, name in (("push to done", "total"), ("push", "push"), ("run", "run")):
        first, second = ([one[name] for one in found[side]] for side in (OURS, peer))
        table.rows.append(Row(what, "tasks/s", first, second))
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {rounds} rounds of {tasks:,} tasks ({peer}: {_tasks(peer, tasks):,}) with an empty body",
        "one process on each side, 8 tasks at a time",
        f"Ackflow syncs a push, here all tasks in one batch; {PEERS[peer][1]}",
        str(noise),
    ]
    return table


def _pushed_singly(found: dict[str, list[dict[str, float]]], tasks: int, noise: Noise) -> Table:
    table = Table("Workers: tasks pushed in one batch, and one by one", (OURS, "one by one"))
    first, second = ([one["total"] for one in found[side]] for side in (OURS, SINGLY))
    table.rows.append(Row("push to done", "tasks/s", first, second))
    table.quiet = noise.quiet
    table.notes = [
        f"one by one each push is synced by itself, one sync per task; {_tasks(SINGLY, tasks):,} tasks"
    ]
    return table


def _tasks(side: str, tasks: int) -> int:
    return tasks if side in FAST else min(tasks, SLOW_TASKS)


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return sorted(one[name] for one in rounds)[len(rounds) // 2]


def _rates(side: str, place: Callable[[], str] | None, tasks: int) -> dict[str, float]:
    """Run one side in a process of its own; returns tasks per second of each step."""
    with folder() as path:
        where = str(path / "queue.db") if place is None else place()
        done = subprocess.run(
            [sys.executable, "-m", "bench.worker_sides", side, where, str(tasks)],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
    seconds = json.loads(done.stdout.splitlines()[-1])
    return {step: tasks / took for step, took in seconds.items()}


def _places(stack: ExitStack) -> dict[str, Callable[[], str]]:
    """The peers that are installed, each with a function that makes it an empty place."""
    places: dict[str, Callable[[], str]] = {}
    missing = redis_missing()
    port = None if missing else stack.enter_context(_redis(stack.enter_context(folder())))
    for name, (package, _) in PEERS.items():
        if find_spec(package) is None:
            print(f"\n{name} is not installed and left out (pip install {package})")
        elif name in ("dramatiq", "Celery"):
            if port is None:
                print(f"\n{name} is left out: {missing}")
            else:
                places[name] = lambda: f"redis://{HOST}:{port}/0"
        elif name == "huey":
            places[name] = partial(_new_file, stack.enter_context(folder()))
        elif (place := _postgres(stack)) is not None:
            places[name] = place
    return places


def _new_file(path: Path) -> str:
    return str(path / f"{time.monotonic_ns()}.db")


@contextmanager
def _redis(path: Path) -> Iterator[int]:
    """Run Redis with its default durability, without snapshots in the middle of a run."""
    port = free_port()
    command = ["redis-server", "--bind", HOST, "--port", str(port), "--dir", str(path)]
    with started([*command, "--save", "", "--appendonly", "no"], port, path):
        yield port


def _postgres(stack: ExitStack) -> Callable[[], str] | None:
    try:
        import psycopg
        from tests.postgres import server
    except ImportError as missing:
        print(f"procrastinate is left out: {missing}")
        return None
    running = stack.enter_context(server.running())

    def place() -> str:
        with psycopg.connect(running.url, autocommit=True) as db:
            db.execute("drop schema public cascade")
            db.execute("create schema public")
        return running.url

    return place


def _idle() -> Table:
    """The CPU of a worker that waits for messages, as a share of one core."""
    with folder() as path:
        (path / "idle.py").write_text(IDLE)
        worker = subprocess.Popen(
            [sys.executable, "-m", "ackflow", "work", "idle:worker", "--concurrency", "8"],
            cwd=path, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(5)
            process = psutil.Process(worker.pid)
            before = process.cpu_times()
            time.sleep(IDLE_SECONDS)
            after = process.cpu_times()
        finally:
            worker.terminate()
            worker.wait()
    used = after.user + after.system - before.user - before.system
    table = Table("Workers: an idle worker", (OURS, "limit"))
    percent = [max(0.01, used / IDLE_SECONDS * 100)]
    row = Row("CPU", "% of a core", percent, [LIMIT_PERCENT], Target(1.0, at_least=False))
    table.rows.append(row)
    return table
