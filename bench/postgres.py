"""Ackflow on PostgreSQL against a hand-written table with SKIP LOCKED, COPY, and PGMQ.

PGMQ is functions in SQL: the environment variable ACKFLOW_PGMQ names its file pgmq.sql.
"""

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import psycopg

import ackflow

from . import brokers
from .engine import UNITS, AckEach, Cycle, Rates
from .measure import Case, Json, Noise, Plan, Queue, alternate, batches, seconds
from .ours import Ackflow
from .report import Table, Target, rows_of

OURS, PLAIN, COPY, PGMQ = "Ackflow", "SKIP LOCKED", "COPY", "PGMQ"
TARGETS = {
    "push, 1 at a time": Target(1),
    "pop and ack, 1 at a time": Target(1.5),
    "push, 1,000 at a time": Target(4),
    "pop and ack, 1,000 at a time": Target(4),
    "cycle of one, p50": Target(0.8, at_least=False),
    "ack one by one, at random": Target(1.5),
}
LEASE = """
update m set until = now() + interval '300 s' where id in
    (select id from m where until <= now() order by until, id limit %s for update skip locked)
returning id, body
"""


class OnPostgres(Ackflow):
    """A separate schema for each round."""

    def __init__(self, url: str) -> None:
        self.session = ackflow.connect(f"{url}?schema=bench_{secrets.token_hex(4)}")
        self.session.configure(self.name, keep_seconds=0)


class SkipLocked:
    """A row per message; every commit is synced, which is the server's default."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url)
        self._db.execute("drop table if exists m")
        self._db.execute(
            "create table m (id bigint generated always as identity primary key, body text, "
            "until timestamptz not null default '-infinity')"
        )
        self._db.execute("create index on m (until, id)")
        self._db.commit()

    def push(self, messages: Sequence[Json]) -> None:
        with self._db.transaction(), self._db.cursor() as cursor:
            rows = [(json.dumps(message),) for message in messages]
            cursor.executemany("insert into m (body) values (%s)", rows)

    def take(self, batch: int) -> list[tuple[int, Json]]:
        with self._db.transaction():
            rows = self._db.execute(LEASE, (batch,)).fetchall()
        return [(id, json.loads(body)) for id, body in rows]

    def ack(self, taken: list[tuple[int, Json]]) -> None:
        with self._db.transaction():
            self._db.execute("delete from m where id = any(%s)", ([id for id, _ in taken],))

    def ack_each(self, taken: list[tuple[int, Json]], order: Sequence[int]) -> None:
        for index in order:
            with self._db.transaction():
                self._db.execute("delete from m where id = %s", (taken[index][0],))

    def catch_up(self) -> None:
        """Does nothing: autovacuum removes deleted rows."""

    def close(self) -> None:
        self._db.close()


class Copying(SkipLocked):
    """The same table, filled by COPY."""

    def push(self, messages: Sequence[Json]) -> None:
        fill = "copy m (body) from stdin"
        with self._db.transaction(), self._db.cursor() as cursor, cursor.copy(fill) as copy:
            for message in messages:
                copy.write_row((json.dumps(message),))


class Pgmq:
    """PGMQ's functions, as its documentation calls them."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url)
        self._db.execute("select pgmq.drop_queue(queue_name) from pgmq.list_queues()")
        self._db.execute("select pgmq.create('m')")
        self._db.commit()

    def push(self, messages: Sequence[Json]) -> None:
        bodies = [json.dumps(message) for message in messages]
        with self._db.transaction():
            self._db.execute("select pgmq.send_batch('m', %s::jsonb[])", (bodies,))

    def take(self, batch: int) -> list[tuple[int, Json]]:
        with self._db.transaction():
            read = "select msg_id, message from pgmq.read('m', 300, %s)"
            return self._db.execute(read, (batch,)).fetchall()

    def ack(self, taken: list[tuple[int, Json]]) -> None:
        with self._db.transaction():
            ids = [id for id, _ in taken]
            self._db.execute("select pgmq.delete('m', %s::bigint[])", (ids,))

    def ack_each(self, taken: list[tuple[int, Json]], order: Sequence[int]) -> None:
        for index in order:
            with self._db.transaction():
                self._db.execute("select pgmq.delete('m', %s::bigint)", (taken[index][0],))

    def catch_up(self) -> None:
        """Does nothing: autovacuum removes deleted rows."""

    def close(self) -> None:
        self._db.close()


class Push:
    """Push all messages in batches of 1,000."""

    def __init__(self, messages: Sequence[Json]) -> None:
        self._batches = batches(messages, 1_000)
        self._n = len(messages)

    def __call__(self, queue: Queue) -> dict[str, float]:
        def push() -> None:
            for batch in self._batches:
                queue.push(batch)

        return {"push, 1,000 at a time": self._n / seconds(push)}


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    try:
        from tests.postgres import server
    except ImportError as missing:
        print(f"PostgreSQL is left out: {missing}")
        return []
    cases: list[Case] = [
        Rates(messages[: plan.singles], 1),
        Rates(messages[: plan.messages // 10], 100),
        Rates(messages[: plan.messages // 4], 1000),
        Cycle(messages[: plan.singles]),
        AckEach(messages),
    ]
    with Noise() as noise, server.running() as running:
        sides = {OURS: lambda _: OnPostgres(running.url), PLAIN: lambda _: SkipLocked(running.url)}
        results = alternate(cases, sides, plan.rounds, noise)
        copied = alternate(
            [Push(messages[: plan.messages // 4])],
            {OURS: sides[OURS], COPY: lambda _: Copying(running.url)},
            plan.rounds,
            noise,
        )
        pgmq = os.environ.get("ACKFLOW_PGMQ")
        if pgmq is not None:
            with psycopg.connect(running.url) as db:
                db.execute(Path(pgmq).read_bytes())
            other = {OURS: sides[OURS], PGMQ: lambda _: Pgmq(running.url)}
            against = alternate(cases, other, plan.rounds, noise)
        with server.running() as own:
            several = [
                brokers.brokers(own.url, plan),
                *brokers.clients(own.url, plan, own.program("pgbench")),
            ]
    table = Table("PostgreSQL: Ackflow and a plain table", (OURS, PLAIN))
    table.rows = rows_of(results, OURS, PLAIN, UNITS, TARGETS)
    table.quiet = noise.quiet
    table.notes = [
        f"medians of {plan.rounds} rounds on one server, over TCP on loopback",
        str(noise),
        "both sync a push before it is confirmed; the table syncs leases and deletes too",
    ]
    if pgmq is None:
        table.notes.append("PGMQ is left out: ACKFLOW_PGMQ does not name its pgmq.sql")
    push = Table("PostgreSQL: Ackflow and COPY", (OURS, COPY))
    push.rows = rows_of(copied, OURS, COPY, UNITS, {"push, 1,000 at a time": Target(0.7)})
    push.quiet, push.notes = noise.quiet, [str(noise)]
    if pgmq is not None:
        queues = Table("PostgreSQL: Ackflow and PGMQ", (OURS, PGMQ))
        queues.rows = rows_of(against, OURS, PGMQ, UNITS, TARGETS)
        queues.quiet, queues.notes = noise.quiet, [str(noise)]
        several.insert(0, queues)
    return [table, push, *several]
