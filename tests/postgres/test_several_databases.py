"""Several databases on two PostgreSQL servers, one of which goes away."""

import time
from collections.abc import Iterator

import pytest

import ackflow
from ackflow import Session
from ackflow.broker.sharded.broker import ShardedBroker
from ackflow.errors import StorageAway

from . import server as postgres

# Where a queue lives depends on random ids; so many are never all in one database.
NAMES = [f"queue-{number}" for number in range(24)]


@pytest.fixture
def other() -> Iterator[postgres.Server]:
    with postgres.running("fsync=off", "full_page_writes=off") as server:
        yield server


def test_a_database_that_is_away_takes_down_its_own_queues_only(
    postgres_url: str, other: postgres.Server
) -> None:
    far = f"{other.url}?connect_timeout=2"
    with ackflow.connect(f"{postgres_url},{far}") as q:
        for name in NAMES:
            q.push(name, 1)
        here, there = sides(q)
        batch, away = q.pop(here, batch=1), q.pop(there, batch=1)
        other.kill()
        broker = q.broker
        assert isinstance(broker, ShardedBroker)
        broker.databases[1].store  # noqa: B018 - its id stays known
        hurry(broker)
        with pytest.raises(StorageAway, match="is away"):
            q.push(there, 2)
        began = time.monotonic()
        with pytest.raises(StorageAway, match="the other databases can be used"):
            q.ack(away)
        with pytest.raises(StorageAway):
            q.pop("never seen")
        q.push(here, 2)
        assert q.ack(batch).settled == 1
        assert [m.data for m in q.pop(here, wait=5)] == [2]
        names = {queue.name for queue in q.queues()}
        assert here in names
        assert there not in names
        assert [(one.place.startswith("postgresql"), one.up) for one in q.databases()] == [
            (True, True),
            (True, False),
        ]
        assert time.monotonic() - began < 5, "calls fail or work at once while it is away"
        with ackflow.connect(f"{postgres_url},{far}") as late:
            late.push(here, 3)
            with pytest.raises(StorageAway, match="none of the databases that answer"):
                late.push(there, 3)
        other.start()
        deadline = time.monotonic() + 30
        while not all(database.up for database in q.databases()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        q.push(there, 2)
        assert {queue.name for queue in q.queues()} == set(NAMES)


def sides(q: Session) -> tuple[str, str]:
    """A queue of each database."""
    broker = q.broker
    assert isinstance(broker, ShardedBroker)
    at = {name: broker.databases.index(broker.directory.homes(name)[0]) for name in NAMES}
    return tuple(next(name for name in NAMES if at[name] == side) for side in (0, 1))  # type: ignore[return-value]


def hurry(broker: ShardedBroker) -> None:
    """Do not wait half a minute for the server to restart."""
    opened = broker.databases[1].opened
    assert opened is not None
    opened.store.hurry()
