"""Tasks for a Celery worker whose broker is Ackflow; the port is in the environment."""

import os
import signal
import time
from pathlib import Path

from celery import Celery, chord

app = Celery("tasks", broker=os.environ.get("BROKER"), backend=os.environ.get("RESULTS", "rpc://"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
if (
    os.environ.get("QUEUES") == "quorum"
):  # with these, Celery delays tasks by 28 queues of the broker
    app.conf.update(
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
        broker_transport_options={"confirm_publish": True},
    )
elif os.environ.get("QUEUES") == "priorities":
    app.conf.update(task_queue_max_priority=10, task_default_priority=5)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def note(path: str, what: str) -> None:
    with Path(path).open("a") as file:
        file.write(what)


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self, path: str) -> int:  # type: ignore[no-untyped-def]
    """Fails twice."""
    with Path(path).open("a") as file:
        file.write("x")
    tries = Path(path).stat().st_size
    if tries < 3:
        raise self.retry(countdown=0.1)
    return tries


@app.task
def killed_once(path: str) -> str:
    """Kills its worker with signal 9 the first time."""
    if not Path(path).exists():
        Path(path).write_text("once")
        os.kill(os.getpid() if os.environ.get("POOL") == "solo" else os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "done"


__all__ = ["add", "app", "chord", "flaky", "killed_once", "note", "total"]
