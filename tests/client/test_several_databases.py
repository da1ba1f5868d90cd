"""Several databases behind one session: where things are, what is merged, what is refused."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import ackflow
from ackflow import Session, VirtualClock, ids
from ackflow.broker.sharded.broker import ShardedBroker
from ackflow.errors import InvalidArgument
from ackflow.ids import parse_message_id

from ..running import Running

NAMES = [f"queue-{number}" for number in range(12)]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two databases with ids that put queues and partitions into both."""
    stores = count(5)
    monkeypatch.setattr(ids, "new_store", lambda: next(stores))
    return [str(tmp_path / name) for name in ("one.db", "two.db")]


@pytest.fixture
def q(places: list[str], clock: VirtualClock) -> Iterator[Session]:
    with ackflow.connect(places, clock=clock, upkeep=False) as session:
        yield session


def homes(places: list[str]) -> dict[str, int]:
    """Which database has each queue, asked of the files themselves."""
    found = {}
    for number, place in enumerate(places):
        with ackflow.connect(place, upkeep=False) as alone:
            found |= {queue.name: number for queue in alone.queues()}
    return found


def split(q: Session) -> tuple[str, str]:
    """Two queues in different databases."""
    for name in NAMES:
        q.push(name, 1)
    broker = q.broker
    assert isinstance(broker, ShardedBroker)
    at = {name: broker.directory.homes(name)[0] for name in NAMES}
    other = next(name for name in NAMES if at[name] is not at[NAMES[0]])
    return NAMES[0], other


def test_a_database_that_is_added_moves_nothing(places: list[str], tmp_path: Path) -> None:
    with ackflow.connect(places, upkeep=False) as q:
        for name in NAMES:
            q.push(name, 1)
    before = homes(places)
    assert set(before.values()) == {0, 1}
    more = [str(tmp_path / "three.db"), *places]
    with ackflow.connect(more, upkeep=False) as q:
        for name in [*NAMES, *[f"new-{number}" for number in range(30)]]:
            q.push(name, 2)
        assert sorted(queue.messages for queue in q.queues()) == [1] * 30 + [2] * 12
    after = homes(more)
    assert {name: after[name] - 1 for name in NAMES} == before
    assert set(after.values()) == {0, 1, 2}


def test_one_database_named_twice_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "one.db")
    with pytest.raises(InvalidArgument, match="are the same database"):
        ackflow.connect([place, str(tmp_path / "." / "one.db")])


@pytest.mark.parametrize(
    "given", [["a.db", "http://b"], "postgresql://a/x,http://b", [], ["a.db", 1], "mysql://a/x"]
)
def test_a_list_of_databases_names_files_or_postgresql(given: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        ackflow.connect(given)


def test_a_transaction_over_two_databases_is_refused_and_nothing_is_done(q: Session) -> None:
    one, other = split(q)
    (message,) = q.pop(one)
    with pytest.raises(InvalidArgument, match="works inside one database"):
        q.transaction().ack(message).push(other, 2).commit()
    assert q.queue_stats(other).messages == 1
    q.transaction().ack(message).push(one, 2).push("not there yet", 3).commit()
    assert q.group_stats(one).counts.done == 1
    assert [m.data for m in q.pop("not there yet")] == [3]


def test_messages_of_two_databases_are_settled_by_one_call_unless_it_is_atomic(q: Session) -> None:
    one, other = split(q)
    some = [*q.pop(one), *q.pop(other)]
    with pytest.raises(InvalidArgument, match="atomic"):
        q.settle([(message, "ack") for message in some], atomic=True)
    assert q.ack(some).settled == 2
    again = q.nack(some)
    assert sorted(refusal.message_id for refusal in again.refused) == sorted(m.id for m in some)


def test_values_are_found_wherever_their_transaction_put_them(q: Session) -> None:
    one, other = split(q)
    for name in (one, other):
        (message,) = q.pop(name)
        q.transaction().ack(message).put(f"of {name}", name).commit()
    assert [value.key for value in q.values("of ")] == sorted([f"of {one}", f"of {other}"])
    assert q.value(f"of {other}") == q.values("of ", reverse=other > one)[0]
    q.push(one, 1)
    (message,) = q.pop(one)
    with pytest.raises(InvalidArgument, match="value"):
        q.transaction().ack(message).put(f"of {other}", 1).commit()


@pytest.fixture
def spread(q: Session) -> Session:
    """A queue over both databases: ten partitions of three messages."""
    q.configure("orders", spread=True)
    for partition in range(10):
        q.push("orders", [partition * 10 + i for i in range(3)], partition=f"p{partition}")
    return q


def test_the_partitions_of_a_spread_queue_are_in_all_databases(
    spread: Session, places: list[str]
) -> None:
    counts = []
    for place in places:
        with ackflow.connect(place, upkeep=False) as alone:
            counts.append(len(alone.partitions("orders")))
    assert sum(counts) == 10
    assert min(counts) > 0
    stats = spread.queue_stats("orders")
    assert (stats.partitions, stats.messages) == (10, 30)


def test_a_spread_queue_is_consumed_whole_and_in_order_by_partition(spread: Session) -> None:
    seen: dict[str, list[int]] = {}
    while batch := spread.pop("orders", group="g", batch=7):
        for message in batch:
            seen.setdefault(message.partition, []).append(message.data)
            assert spread.message("orders", message.id).data == message.data
            assert spread.why("orders", message.id, group="g").state == "leased"
        spread.ack(batch)
    assert seen == {f"p{p}": [p * 10, p * 10 + 1, p * 10 + 2] for p in range(10)}
    assert spread.group_stats("orders", "g").counts.done == 30
    (stats,) = spread.queues()
    assert [group.counts.done for group in stats.groups] == [30]


def test_acking_and_popping_reaches_every_database_of_a_spread_queue(spread: Session) -> None:
    """A consumer that always acks with its next pop would stay in the database it began with."""
    _, batch = spread.ack_and_pop([], "orders", group="g")
    stores = set()
    for _ in range(4):
        stores.add(parse_message_id(batch[0].id).store)
        settled, batch = spread.ack_and_pop(batch, "orders", group="g")
        assert settled.settled == 1
    assert len(stores) == 2


def test_what_acking_and_popping_refuses_has_the_id_of_its_message(q: Session) -> None:
    async def refused(batch: ackflow.Batch[ackflow.Message]) -> list[str]:
        settled, _ = await ackflow.aio.Session(q).ack_and_pop(batch, "orders")
        return [refusal.message_id for refusal in settled.refused]

    q.push("orders", [1, 2])
    batch = q.pop("orders", batch=2)
    ids = [message.id for message in batch]
    q.release(batch)
    settled, _ = q.ack_and_pop(batch, "orders")
    assert [refusal.message_id for refusal in settled.refused] == ids
    assert asyncio.run(refused(batch)) == ids


def test_a_new_group_of_a_spread_queue_starts_at_the_same_time_everywhere(spread: Session) -> None:
    spread.group("orders", "late", start="new")
    for partition in range(10):
        spread.push("orders", "new", partition=f"p{partition}")
    got: Counter[str] = Counter()
    while batch := spread.pop("orders", group="late", batch=100):
        got.update(message.data for message in batch)
        spread.ack(batch)
    assert got == {"new": 10}


def test_pages_over_a_spread_queue_show_each_message_once(spread: Session) -> None:
    found, page = [], spread.browse("orders", limit=4)
    while True:
        found += [message.data for message in page]
        if page.next is None:
            break
        page = spread.browse("orders", limit=4, after=page.next)
    expected = sorted(p * 10 + i for p in range(10) for i in range(3))
    assert sorted(found) == expected
    news = spread.follow("orders")
    spread.push("orders", 500, partition="p1")
    spread.push("orders", 501, partition="p2")
    assert sorted(m.data for m in spread.follow("orders", news.after).items) == [500, 501]


def test_dead_letters_of_a_spread_queue_are_listed_counted_and_redriven(spread: Session) -> None:
    while batch := spread.pop("orders", batch=100):
        spread.reject(batch, "no")
    first = spread.dead_letters("orders", limit=13)
    assert first.total == 30
    second = spread.dead_letters("orders", limit=100, after=first.next)
    letters = [*first, *second]
    assert len({letter.id for letter in letters}) == len(letters) == 30
    (line,) = spread.dead_summary("orders")
    assert line.count == 30
    assert spread.redrive("orders", ids=[letters[0].id, letters[-1].id]) == 2
    assert spread.purge_dead("orders", ids=[letters[1].id]) == 1
    assert spread.redrive("orders") == 27
    assert spread.group_stats("orders").counts.ready == 29


def test_a_waiting_pop_wakes_for_a_message_in_any_database(places: list[str]) -> None:
    with ackflow.connect(places, upkeep=False) as q:
        q.configure("orders", spread=True)
        for partition in ("a", "b", "c", "d"):
            got: list[object] = []
            waiting = threading.Thread(
                target=lambda got=got: got.extend(q.pop("orders", wait=20))  # type: ignore[misc]
            )
            waiting.start()
            q.push("orders", 1, partition=partition)
            waiting.join(10)
            assert len(got) == 1


def test_a_spread_queue_refuses_what_promises_one_lease_for_all(spread: Session) -> None:
    with pytest.raises(InvalidArgument, match="one lease for a whole queue"):
        spread.pop("orders", dialect="pushpop")
    with pytest.raises(InvalidArgument, match="not gathered"):
        spread.configure("orders", spread=False)


def test_a_lease_known_by_its_token_alone_is_settled_where_it_is(
    places: list[str], spread: Session, clock: VirtualClock
) -> None:
    batch = spread.pop("orders", batch=2)
    stored = spread.browse("orders", limit=1000)
    foreign = next(m for m in stored if m.id[:12] != batch[0].id[:12])
    with ackflow.connect(places, clock=clock, upkeep=False) as other:
        assert batch.token is not None
        lease = other.lease(batch.token)
        assert [m.id for m in lease.read()] == [m.id for m in batch]
        settled = lease.ack(batch[0].id, foreign.id)
        assert (settled.settled, [r.message_id for r in settled.refused]) == (1, [foreign.id])


def test_the_asyncio_session_uses_several_databases(places: list[str]) -> None:
    async def run() -> None:
        async with await ackflow.aio.connect(places) as q:
            await q.configure("orders", spread=True)
            for partition in range(6):
                await q.push("orders", partition, partition=str(partition))
            got = []
            while len(got) < 6:
                batch = await q.pop("orders", batch=4, wait=5)
                got += [message.data for message in batch]
                await q.ack(batch)
            assert sorted(got) == list(range(6))
            waiting = asyncio.ensure_future(q.pop("orders", wait=20))
            await asyncio.sleep(0.05)
            await q.push("orders", 7, partition="late")
            assert [message.data for message in await waiting] == [7]

    asyncio.run(run())


def test_a_server_serves_several_databases(places: list[str]) -> None:
    running = Running(ackflow.connect(places, upkeep=False))
    try:
        with ackflow.connect(running.url) as q:
            one, other = split_by_server(q, running.session)
            for name in (one, other):
                receipt = q.push(name, [1, 2])
                assert q.message(name, receipt[1]).data == 2
                batch = q.pop(name, batch=10, wait=5)
                assert batch[-1].id == receipt[1]
                assert q.ack(batch).settled == 3
                assert q.nack(batch).refused[0].message_id == batch[0].id
                assert q.lease(batch.token or "").ack(batch[0].id).noop == 1
            with pytest.raises(InvalidArgument, match="inside one database"):
                q.transaction().push(one, 1).push(other, 1).commit()
            q.configure("wide", spread=True)
            for partition in range(8):
                q.push("wide", partition, partition=str(partition))
            got = []
            while batch := q.pop("wide", batch=3):
                got += [m.data for m in batch]
                q.ack(batch)
            assert sorted(got) == list(range(8))
            _, batch = q.ack_and_pop([], "wide", group="g", batch=3)
            while batch:
                _, batch = q.ack_and_pop(batch, "wide", group="g", batch=3)
            assert q.group_stats("wide", "g").counts.done == 8
    finally:
        running.stop()
        running.session.close()


def split_by_server(q: Session, behind: Session) -> tuple[str, str]:
    one, other = split(behind)
    assert {one, other} <= {queue.name for queue in q.queues()}
    return one, other
