"""The command line and the server on PostgreSQL."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ackflow
from ackflow import aio
from ackflow.store.postgres import store

from ..cli.conftest import Cli, home, nowhere  # noqa: F401
from ..server.conftest import Process, start_process  # noqa: F401


def test_doctor_looks_at_what_is_in_the_database(nowhere: Cli, postgres_url: str) -> None:  # noqa: F811
    nowhere("push", "orders", "1", "--url", postgres_url)
    told = nowhere("doctor", "--url", postgres_url)
    assert "the database can be opened for reading and writing" in told
    assert "file system" not in told


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@127.0.0.1:1/jobs", "postgresql://me:***@127.0.0.1:1/jobs"),
        (
            "postgresql://me@127.0.0.1:1/jobs?password=secret&connect_timeout=3",
            "postgresql://me@127.0.0.1:1/jobs?password=***&connect_timeout=3",
        ),
    ],
)
def test_a_password_is_saved_and_never_shown(
    nowhere: Cli,  # noqa: F811
    url: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "AWAY_SECONDS", 0.0)
    told = nowhere("context", "add", "shared", url, "--use")
    told += nowhere("context", "list") + nowhere("context", "list", "--json")
    told += nowhere.fails(4, "queues") + nowhere.fails(4, "queues", "--url", url)
    told += nowhere.run("doctor").output
    assert shown in told
    assert "secret" not in told


def test_a_server_is_a_broker_on_postgres_and_others_may_be_killed_beside_it(
    start_process: Callable[..., Process],  # noqa: F811
    postgres_url: str,
) -> None:
    """Two servers on one database share queues: each delivers messages that the other confirmed."""
    one, two = start_process(db=postgres_url), start_process(db=postgres_url)
    with ackflow.connect(one.url) as q, ackflow.connect(two.url) as other:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: q.push("orders", n), range(100)))
            waiting = pool.submit(other.pop, "later", wait=20)
            one.kill()
            with ackflow.connect(postgres_url) as third:
                third.push("later", "come")
            assert [message.data for message in waiting.result(30)] == ["come"]
        found = other.pop("orders", batch=1_000)
        assert sorted(message.data for message in found) == list(range(100))
        assert other.ack(found).refused == []


def test_tasks_of_one_loop_work_on_postgres(postgres_url: str) -> None:
    async def work() -> list[Any]:
        async with await aio.connect(postgres_url, upkeep=False) as q:
            await asyncio.gather(*(q.push("orders", n) for n in range(50)))
            found = await q.pop("orders", batch=100)
            await q.ack(found)
            return sorted(message.data for message in found)

    assert asyncio.run(work()) == list(range(50))
