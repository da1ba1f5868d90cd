"""One side of the worker benchmark, in a process of its own.

`python -m bench.worker_sides SIDE PLACE TASKS` pushes tasks with an empty body, runs them with
concurrency 8 in this process, and prints the seconds of both steps as JSON.
"""

import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

CONCURRENCY = 8


class Done:
    """Counts finished tasks; `wait` returns when all are done."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._count = itertools.count(1)
        self._all = threading.Event()

    def one(self) -> None:
        if next(self._count) == self._tasks:
            self._all.set()

    def wait(self) -> None:
        if not self._all.wait(300):
            raise TimeoutError("the tasks were not done within 300 s")


def measure(push: Callable[[], object], run: Callable[[], object]) -> dict[str, float]:
    start = time.perf_counter()
    push()
    pushed = time.perf_counter()
    run()
    ended = time.perf_counter()
    return {"push": pushed - start, "run": ended - pushed, "total": ended - start}


def ackflow(place: str, tasks: int, together: bool = True) -> dict[str, float]:
    from contextlib import nullcontext

    from ackflow.worker import Context, Middleware, Worker

    worker = Worker(place)
    done = Done(tasks)

    class Settled(Middleware):
        """Counts acknowledged tasks: those are done, not only executed."""

        def after_settle(self, context: Context, error: BaseException | None) -> None:
            done.one()

    @worker.task("bench")
    def noop(n: int) -> None:
        pass

    worker.add(Settled())
    worker.session.configure("bench", keep_seconds=0)

    def push() -> None:
        with worker.batch() if together else nullcontext():
            for n in range(tasks):
                noop.push(n)

    def run() -> None:
        thread.start()
        done.wait()

    thread = threading.Thread(target=lambda: worker.run(concurrency=CONCURRENCY))
    found = measure(push, run)
    worker.stop()
    thread.join()
    worker.close()
    return found


def ackflow_singly(place: str, tasks: int) -> dict[str, float]:
    return ackflow(place, tasks, together=False)


def dramatiq(place: str, tasks: int) -> dict[str, float]:
    library = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=place)
    library.set_broker(broker)
    done = Done(tasks)

    @library.actor(broker=broker)  # type: ignore[untyped-decorator]
    def noop(n: int) -> None:
        done.one()

    def push() -> None:
        for n in range(tasks):
            noop.send(n)

    def run() -> None:
        worker.start()
        done.wait()

    worker = library.Worker(broker, worker_threads=CONCURRENCY)
    found = measure(push, run)
    worker.stop()
    return found


def celery(place: str, tasks: int) -> dict[str, float]:
    app = import_module("celery").Celery("bench", broker=place)
    app.conf.update(worker_hijack_root_logger=False, task_ignore_result=True)
    start_worker = import_module("celery.contrib.testing.worker").start_worker
    done = Done(tasks)

    @app.task  # type: ignore[untyped-decorator]
    def noop(n: int) -> None:
        done.one()

    def push() -> None:
        for n in range(tasks):
            noop.delay(n)

    def run() -> None:
        with start_worker(
            app, concurrency=CONCURRENCY, pool="threads", perform_ping_check=False,
            loglevel="ERROR",
        ):  # fmt: skip
            done.wait()
            ended.append(time.perf_counter())

    ended: list[float] = []
    start = time.perf_counter()
    found = measure(push, run)
    total = ended[0] - start  # without the time to stop its worker
    return {"push": found["push"], "run": total - found["push"], "total": total}


def huey(place: str, tasks: int) -> dict[str, float]:
    queue = import_module("huey").SqliteHuey(filename=place, fsync=True)
    done = Done(tasks)

    @queue.task()  # type: ignore[untyped-decorator]
    def noop(n: int) -> None:
        done.one()

    def push() -> None:
        for n in range(tasks):
            noop(n)

    def run() -> None:
        consumer.start()
        done.wait()

    consumer = queue.create_consumer(workers=CONCURRENCY, periodic=False, initial_delay=0.01)
    found = measure(push, run)
    consumer.stop(graceful=False)
    return found


def procrastinate(place: str, tasks: int) -> dict[str, float]:
    library = import_module("procrastinate")
    app = library.App(connector=library.PsycopgConnector(conninfo=place))

    @app.task(queue="bench")  # type: ignore[untyped-decorator]
    async def noop(n: int) -> None:
        pass

    async def main() -> dict[str, float]:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            start = time.perf_counter()
            await noop.batch_defer_async(*({"n": n} for n in range(tasks)))
            pushed = time.perf_counter()
            await app.run_worker_async(
                concurrency=CONCURRENCY, wait=False, install_signal_handlers=False
            )
            ended = time.perf_counter()
        return {"push": pushed - start, "run": ended - pushed, "total": ended - start}

    return asyncio.run(main())


SIDES: dict[str, Callable[[str, int], dict[str, float]]] = {
    "Ackflow": ackflow,
    "Ackflow, one by one": ackflow_singly,
    "dramatiq": dramatiq,
    "Celery": celery,
    "huey": huey,
    "procrastinate": procrastinate,
}


def main(side: str, place: str, tasks: str) -> Any:
    logging.disable(logging.CRITICAL)
    print(json.dumps(SIDES[side](place, int(tasks))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
