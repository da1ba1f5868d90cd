"""Tasks and messages that a worker pushes inside the user's own transaction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import ackflow
from ackflow.worker import Middleware, Push, Worker


class Stamp(Middleware):
    def before_push(self, push: Push) -> None:
        push.headers["stamp"] = "1"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.outer)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "shop.db")


@pytest.fixture
def worker(url: str) -> Iterator[Worker]:
    with Worker(url, upkeep=False) as worker:
        worker.session.queues()  # the file exists
        yield worker


@pytest.fixture
def db(worker: Worker, url: str) -> Iterator[Any]:
    """The user's own connection, with an open transaction."""
    if url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            yield connection
            connection.rollback()
        return
    own = apsw.Connection(url)
    own.execute("begin immediate")
    yield own
    own.close()


def test_a_task_is_pushed_with_the_commit_and_not_after_a_rollback(worker: Worker, db: Any) -> None:
    sent: list[str] = []

    @worker.task("mail", result=True)
    def send_mail(to: str) -> int:
        sent.append(to)
        return len(sent)

    worker.add(Stamp())
    handle = send_mail.push_with(within=ackflow.within(db), priority=3)("ann")
    worker.push("mail-log", "ann", within=ackflow.within(db))
    db.execute("commit")
    assert worker.run(message_limit=1).acked == 1
    assert sent == ["ann"]
    assert handle.result(timeout=5) == 1
    (log,) = worker.session.pop("mail-log")
    assert (log.data, log.headers) == ("ann", {"stamp": "1"})

    db.execute("begin")
    send_mail.push_with(within=ackflow.within(db))("bob")
    db.execute("rollback")
    assert not worker.session.pop("mail")


def test_a_unique_task_is_unique_in_the_users_transaction_as_well(worker: Worker, db: Any) -> None:
    @worker.task("sync", unique=True)
    def sync(user: int) -> None: ...

    within = ackflow.within(db)
    assert not sync.push_with(within=within)(7).duplicate
    assert sync.push_with(within=within)(7).duplicate
    db.execute("commit")
    assert sync.push(7).duplicate
    assert worker.session.queue_stats("sync").messages == 1
