"""PostgreSQL behind pgbouncer, in session mode and in transaction mode."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

import ackflow
from ackflow.errors import NotFound

from . import server as servers
from .test_brokers import drained

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
if PGBOUNCER is None and "CI" not in os.environ:
    pytest.skip("pgbouncer is not installed", allow_module_level=True)


@contextlib.contextmanager
def pgbouncer(server: servers.Server, folder: Path, mode: str) -> Iterator[str]:
    """A pooler on a separate port."""
    assert PGBOUNCER is not None, "install pgbouncer"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = [
        "[databases]", f"postgres = host=127.0.0.1 port={server.port} user=postgres",
        "[pgbouncer]", "listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir =",
        "auth_type = any", f"pool_mode = {mode}",
    ]  # fmt: skip
    settings, log = folder / "pgbouncer.ini", folder / "pgbouncer.log"
    settings.write_text("\n".join(lines))
    user = "nobody" if os.geteuid() == 0 else None  # pgbouncer refuses to run as root
    with settings.open("rb") as given, log.open("wb") as said:
        process = subprocess.Popen(
            [PGBOUNCER, "/dev/stdin"], stdin=given, stdout=said, stderr=said, cwd="/",
            user=user, extra_groups=[] if user else None,
        )  # fmt: skip
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(url, connect_timeout=5).close()
                break
            except psycopg.OperationalError:
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, log.read_text()
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["session", "transaction"])
def pooled_url(
    postgres_server: servers.Server,
    postgres_url: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    with pgbouncer(postgres_server, tmp_path, request.param) as url:
        yield url


def test_brokers_behind_a_pooler_share_the_database_with_those_beside_it(
    pooled_url: str, postgres_url: str
) -> None:
    with (
        ackflow.connect(pooled_url) as one,
        ackflow.connect(pooled_url) as two,
        ackflow.connect(postgres_url) as beside,
        ThreadPoolExecutor(12) as pool,
    ):
        list(pool.map(lambda n: (one, two, beside)[n % 3].push("jobs", n), range(90)))
        assert one.queue_stats("jobs").messages == 90
        found = pool.map(lambda q: drained(q, "jobs"), (one, two, beside))
        assert sorted(n for part in found for n in part) == list(range(90)), "each came once"
        with pytest.raises(NotFound):
            one.queue_stats("other")  # a refusal leaves the connection unchanged
        for sender, receiver in ((one, two), (beside, one), (two, beside)):
            waiting = pool.submit(receiver.pop, "jobs", wait=60)
            time.sleep(0.1)
            sender.push("jobs", "come")
            (message,) = waiting.result(30)  # woken by the push, not at the end of its wait
            message.ack()


def test_a_pooler_keeps_no_setting_and_no_table_of_ours(pooled_url: str, postgres_url: str) -> None:
    schema = f"{pooled_url}?schema=pooled"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("drop schema if exists pooled cascade")
        for _ in range(2):  # created, and opened again
            with ackflow.connect(schema, upkeep=False) as q:
                q.push("jobs", 1)
                names = ("search_path", "lock_timeout", "enable_seqscan", "synchronous_commit")
                for _ in range(3):
                    with psycopg.connect(pooled_url, autocommit=True) as other:
                        for name in names:
                            shown = [
                                one.execute(f"show {name}".encode()).fetchall()
                                for one in (other, db)
                            ]
                            assert shown[0] == shown[1], f"{name} is set for others"
        count = "select count(*) from pg_tables where schemaname = %s"
        assert db.execute(count, ("public",)).fetchall() == [(0,)]
        assert db.execute(count, ("pooled",)).fetchall() != [(0,)]
        db.execute("drop schema pooled cascade")
