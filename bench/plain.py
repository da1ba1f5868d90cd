"""A hand-written table: a row per message, leased by a time column, deleted by the ack.

It uses the standard sqlite3 module with its defaults, in WAL mode; every commit is synced.
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from .measure import Json

LEASE_SECONDS = 300.0
LEASE = """
update m set until = ? where id in
    (select id from m where until <= ? order by until, id limit ?)
returning id, body
"""


class PlainTable:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path / "plain.db", isolation_level="IMMEDIATE")
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=full")
        self._db.execute("create table m (id integer primary key, body text, until real)")
        self._db.execute("create index m_until on m (until, id)")

    def push(self, messages: Sequence[Json]) -> None:
        with self._db:
            self._db.executemany(
                "insert into m (body, until) values (?, 0)", [(json.dumps(m),) for m in messages]
            )

    def take(self, batch: int) -> list[tuple[int, Json]]:
        now = time.time()
        with self._db:
            rows = self._db.execute(LEASE, (now + LEASE_SECONDS, now, batch)).fetchall()
        return [(id, json.loads(body)) for id, body in rows]

    def ack(self, taken: list[tuple[int, Json]]) -> None:
        with self._db:
            self._db.executemany("delete from m where id = ?", [(id,) for id, _ in taken])

    def ack_each(self, taken: list[tuple[int, Json]], order: Sequence[int]) -> None:
        for index in order:
            with self._db:
                self._db.execute("delete from m where id = ?", (taken[index][0],))

    def catch_up(self) -> None:
        """Does nothing: the ack deletes the row."""

    def close(self) -> None:
        self._db.close()
