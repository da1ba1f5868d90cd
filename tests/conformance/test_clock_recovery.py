"""Upkeep corrects times that were written while the clock was ten years ahead."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.broker import access_tokens, audit
from ackflow.broker.broker import Broker
from ackflow.broker.core.routing.imports import import_messages
from ackflow.broker.core.upkeep.clock_recovery import recover
from ackflow.broker.requests import Publication
from ackflow.broker.sampling import series
from ackflow.dialects.rabbitmq.verbs import QueueRequest, declare_queue, remove_unused
from ackflow.model import when
from ackflow.store.migrate import shipped

YEARS = 10 * 365 * 86_400.0


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "test.db")


@pytest.fixture
def q(place: str, clock: VirtualClock) -> Iterator[Session]:
    with ackflow.connect(place, clock=clock, upkeep=False) as session:
        yield session


@contextmanager
def years_ahead(q: Session, clock: VirtualClock) -> Iterator[None]:
    """What is done within this is done under a wrong clock, which is then set right."""
    clock.step(YEARS)
    yield
    clock.step(-YEARS)
    q.push("other", "the clock was set right")
    q.upkeep()


def pop_data(q: Session, **options: Any) -> list[Any]:
    return [m.data for m in q.pop("q", **{"group": "g", "batch": 100, **options})]


def comes_after(q: Session, clock: VirtualClock, seconds: float) -> list[Any]:
    """What is handed out after so many seconds, and nothing is before."""
    clock.advance(seconds - 0.001)
    assert pop_data(q) == []
    clock.advance(0.001)
    return pop_data(q)


def created(q: Session) -> list[float]:
    return [m.created_at.timestamp() for m in q.browse("q").items]


def test_a_lease_ends_when_its_time_is_over(q: Session, clock: VirtualClock) -> None:
    q.push("q", ["a", "b"])
    with years_ahead(q, clock):
        assert pop_data(q, batch=1, lease_seconds=30) == ["a"]
        q.push("q", "c")
        assert pop_data(q, batch=2, lease_seconds=30) == ["b", "c"]
    assert comes_after(q, clock, 30) == ["a", "b", "c"]


def test_a_lease_extended_under_a_wrong_clock_ends_when_its_time_is_over(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", "a")
    with years_ahead(q, clock):
        q.extend(q.pop("q", group="g", lease_seconds=30), 60)
    assert comes_after(q, clock, 60) == ["a"]


def test_a_lease_of_before_is_not_touched(q: Session, clock: VirtualClock) -> None:
    q.push("q", "a")
    (message,) = q.pop("q", group="g", lease_seconds=7 * 86_400)
    clock.step(-YEARS)
    q.push("other", "the clock is behind for a while")
    clock.step(YEARS)
    q.upkeep()
    clock.advance(7 * 86_400 - 1)
    message.ack()


@pytest.mark.parametrize("delay", [0.5, 5.0, 86_400.0])
def test_a_nacked_message_comes_after_its_delay(
    q: Session, clock: VirtualClock, delay: float
) -> None:
    q.push("q", "a")
    with years_ahead(q, clock):
        q.pop("q", group="g")[0].nack(delay=delay)
    assert comes_after(q, clock, delay) == ["a"]


def test_a_message_expires_after_its_own_time_to_live(q: Session, clock: VirtualClock) -> None:
    def publish(data: bytes, ttl: float) -> None:
        q.broker.do(import_messages, True, "q", [Publication("", ["q"], data, ttl=ttl)])

    publish(b"long", YEARS * 2)
    with years_ahead(q, clock):
        publish(b"short", 30)
        publish(b"longer", 60)
    q.group("q", "g")
    clock.advance(31)
    assert pop_data(q, lease_seconds=1) == [b"long", b"longer"]
    clock.advance(30)
    q.upkeep()
    assert pop_data(q, lease_seconds=1) == [b"long"]
    clock.advance(YEARS)
    q.upkeep()
    assert pop_data(q) == [b"long"]


def test_a_queue_declared_under_a_wrong_clock_expires_when_unused(
    q: Session, clock: VirtualClock
) -> None:
    asked = QueueRequest("temporary", True, False, None, "", {"x-expires": 60_000})
    with years_ahead(q, clock):
        q.broker.do(declare_queue, True, asked, "")
    clock.advance(61)
    assert q.broker.do(remove_unused, True, "temporary")
    assert "temporary" not in {one.name for one in q.queues()}


def test_the_audit_and_the_charts_have_no_times_ahead(q: Session, clock: VirtualClock) -> None:
    broker = q.broker
    assert isinstance(broker, Broker)
    audit.audit_calls(broker, audit.Actor("me", "here"))
    with years_ahead(q, clock):
        q.configure("q", keep_seconds=60)
        for number in range(3):
            q.push("q", number)
            clock.advance(60)
            broker.sampler.run_once()
        broker.sampler.flush()
    assert [one.at for one in broker.look(audit.entries, None, 9)] <= [when(clock.now())]
    broker.sampler.run_once()
    for number in range(3):
        q.push("q", number)
        clock.advance(60)
        broker.sampler.run_once()
    broker.sampler.flush()
    found = broker.read(
        lambda tx: tx.all("series_of", series.ALL_QUEUES, series.MINUTE, 0, 1 << 40)
    )
    assert found
    assert all(start <= clock.now() // 1_000_000 for start, _ in found)


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_delayed_message_comes_after_its_delay(
    q: Session, clock: VirtualClock, looked_at: bool
) -> None:
    q.push("q", "of before", delay=40)
    with years_ahead(q, clock):
        q.push("q", "a", delay=30)
        q.group("q", "g")
        if looked_at:
            assert pop_data(q, auto_ack=True) == ["of before"]
    assert comes_after(q, clock, 30) == ["a"]
    assert comes_after(q, clock, 10) == ([] if looked_at else ["of before"])


def test_a_delay_of_before_is_kept(q: Session, clock: VirtualClock) -> None:
    q.push("q", "a", delay=3 * 86_400)
    q.push("q", "b")
    assert pop_data(q, batch=1, auto_ack=True) == ["b"]
    with years_ahead(q, clock):
        q.push("q", "c")
    assert pop_data(q, auto_ack=True) == ["c"]
    assert comes_after(q, clock, 3 * 86_400) == ["a"]


def test_created_at_is_right_and_never_decreases(q: Session, clock: VirtualClock) -> None:
    now = clock.now() / 1_000_000
    q.push("q", "before")
    with years_ahead(q, clock):
        q.push("q", "during")
        clock.advance(5)
        q.push("q", "during")
    q.push("q", "after")
    clock.advance(5)
    q.push("q", "after")
    assert created(q) == [now, now, now + 5, now + 5, now + 10]


def test_a_push_does_not_follow_a_time_that_is_far_ahead(q: Session, clock: VirtualClock) -> None:
    now = clock.now() / 1_000_000
    clock.step(YEARS)
    q.push("q", "ahead")
    clock.step(-YEARS)
    q.push("q", "right")
    q.publish("producer", 1, [q.stage("producer", 1, "q", ["staged"])])
    clock.step(-30)
    q.push("q", "a little behind")
    assert created(q)[1:] == [now, now, now]


def test_seeking_by_time_finds_what_was_pushed_after_it(q: Session, clock: VirtualClock) -> None:
    q.push("q", "before")
    clock.advance(10)
    with years_ahead(q, clock):
        q.push("q", "during")
    clock.advance(10)
    q.push("q", "after")
    q.group("q", "g")
    for seconds, found in ((5, ["after"]), (15, ["during", "after"])):
        q.seek("q", "g", time=when(clock.now() - round(seconds * 1e6)))
        assert pop_data(q, auto_ack=True) == found


@pytest.mark.parametrize("option", ["retention_seconds", "ttl_seconds"])
def test_what_is_too_old_goes(q: Session, clock: VirtualClock, option: str) -> None:
    q.configure("q", **{option: 100})
    with years_ahead(q, clock):
        q.push("q", "a")
    clock.advance(50)
    q.push("q", "b")
    clock.advance(50)
    assert q.upkeep().expired == 1
    assert pop_data(q) == ["b"]


def test_what_waited_too_long_becomes_a_dead_letter(q: Session, clock: VirtualClock) -> None:
    q.configure("q", max_wait_seconds=100)
    q.group("q", "g")
    with years_ahead(q, clock):
        q.push("q", ["a", "b"])
        q.pop("q", group="g")[0].release()
    clock.advance(50)
    q.push("q", "c")
    clock.advance(50)
    q.upkeep()
    assert q.group_stats("q", "g").counts.dead >= 1
    assert pop_data(q)[-1:] == ["c"]


def test_what_is_settled_is_trimmed(q: Session, clock: VirtualClock) -> None:
    q.configure("q", keep_seconds=100)
    with years_ahead(q, clock):
        q.push("q", "a")
        q.pop("q", group="g")[0].ack()
    q.push("q", "b")
    q.pop("q", group="g")[0].ack()
    clock.advance(100)
    assert q.upkeep().trimmed == 2


def test_history_is_forgotten(q: Session, clock: VirtualClock) -> None:
    q.push("q", ["a", "b"])
    with years_ahead(q, clock):
        q.pop("q", group="g")[0].ack()
    q.pop("q", group="g")[0].ack()
    clock.advance(601)
    assert q.upkeep().pruned >= 2


def test_a_key_is_known_for_a_day_and_then_forgotten(q: Session, clock: VirtualClock) -> None:
    with years_ahead(q, clock):
        first = list(q.push("q", "a", key="k"))
    assert list(q.push("q", "a", key="k")) == first
    clock.advance(86_401)
    q.upkeep()
    assert list(q.push("q", "a", key="k")) != first


def test_a_transaction_id_is_known_for_its_window(q: Session, clock: VirtualClock) -> None:
    q.configure("q", dedup_seconds=100)
    with years_ahead(q, clock):
        q.push("q", Item(data="a", transaction_id="t"))
    q.push("q", Item(data="a", transaction_id="t"))
    assert pop_data(q, auto_ack=True) == ["a"]
    clock.advance(86_401)
    q.upkeep()
    q.push("q", Item(data="a", transaction_id="t"))
    assert pop_data(q) == ["a"]


def test_partitions_are_served_in_turn(place: str, q: Session, clock: VirtualClock) -> None:
    for partition in ("x", "y", "z"):
        q.push("q", [f"{partition}{n}" for n in range(5)], partition=partition)
    with years_ahead(q, clock):
        assert pop_data(q, batch=1, auto_ack=True) == ["x0"]
    seen = []
    with ackflow.connect(place, clock=clock, upkeep=False) as again:
        for _ in range(6):
            clock.advance(1)
            seen += pop_data(again, batch=1, auto_ack=True)
    assert sorted(seen) == ["x1", "x2", "y0", "y1", "z0", "z1"]


def test_a_window_closes(q: Session, clock: VirtualClock) -> None:
    q.configure("q", window_seconds=10)
    with years_ahead(q, clock):
        q.push("q", "a")
    assert comes_after(q, clock, 10) == ["a"]


def test_what_was_staged_and_never_published_goes(q: Session, clock: VirtualClock) -> None:
    with years_ahead(q, clock):
        stage = q.stage("producer", 1, "q", ["a"])
    clock.advance(86_401)
    q.upkeep()
    with pytest.raises(ackflow.errors.StageMissing):
        q.publish("producer", 1, [stage])


def test_a_dead_letter_has_the_right_time(q: Session, clock: VirtualClock) -> None:
    now = clock.now()
    with years_ahead(q, clock):
        q.push("q", "a")
        q.pop("q", group="g")[0].reject("no")
    (letter,) = q.dead_letters("q").items
    assert (letter.died_at, letter.created_at) == (when(now), when(now))


def test_it_is_done_once(q: Session, clock: VirtualClock) -> None:
    with years_ahead(q, clock):
        q.push("q", "a")
    assert isinstance(q.broker, Broker)
    assert recover(q.broker.read, q.broker.write) == 0
    assert q.upkeep().total == 0


def test_after_a_step_of_an_hour_leases_and_delays_made_before_it_end_in_time(
    q: Session, clock: VirtualClock
) -> None:
    q.push("q", ["a", "b"])
    q.push("q", "c", delay=40)
    q.pop("q", group="g", lease_seconds=30)
    clock.step(-3600)
    q.push("other", "the clock was set right")
    q.upkeep()
    assert pop_data(q) == ["b"]
    assert comes_after(q, clock, 30) == ["a"]
    assert comes_after(q, clock, 10) == ["c"]


# what only the broker itself shows


def test_an_access_token_made_under_a_wrong_clock_lives_as_long_as_it_was_to(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with ackflow.connect(tmp_path / "a.db", clock=clock, upkeep=False) as q:
        with years_ahead(q, clock):
            q.broker.do(access_tokens.create, True, "t", [access_tokens.grant("admin")], 100.0)
        (token,) = q.broker.look(access_tokens.tokens)
        assert token.live(clock.now())
        assert not token.live(clock.now() + 100_000_000)


def test_the_time_to_an_ack_is_never_negative(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.push("q", "a")
        clock.step(YEARS)
        (message,) = q.pop("q")
        clock.step(-YEARS)
        message.ack()
        assert isinstance(q.broker, Broker)
        (counts,) = q.broker.observer.times().values()
        assert counts[0] == 1
        assert counts[-1] == 0


def test_many_are_set_right_in_slices(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackflow.broker.core.upkeep.clock_recovery.ROWS", 2)
    monkeypatch.setattr("ackflow.broker.core.upkeep.clock_recovery.LOOKED_AT", 3)
    with ackflow.connect(tmp_path / "a.db", clock=clock, upkeep=False) as q:
        q.push("q", "before")
        with years_ahead(q, clock):
            for n in range(11):
                q.push("q", n, key=f"k{n}", delay=5 if n % 2 else None)
                q.pop("q", group="g", lease_seconds=5)
        assert set(created(q)) == {clock.now() / 1_000_000}
        assert len(comes_after(q, clock, 5)) == 12


def test_a_file_of_an_older_version_is_looked_through(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        clock.step(YEARS)
        q.push("q", ["a", "b"])
        q.pop("q", group="g", lease_seconds=30)
        # As versions before did it: set aside without a time.
        store: Any = q.broker.store
        clock.step(-YEARS)
        store._db.execute(
            "update claim_rows set state = 1, at = null, lease = 0; "
            "update cursors set keeps = 0, kept = 0, kept_at = null"
        )
        (sql,) = [sql for _, sql in shipped("sqlite") if "clock_back" in sql]
        store._db.execute(sql[sql.index("insert into meta") :])
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        q.upkeep()
        assert created(q) == [clock.now() / 1_000_000] * 2
        assert "b" in pop_data(q)


def test_a_file_opened_under_a_wrong_clock_and_later_under_a_right_one(tmp_path: Path) -> None:
    """With the clock of a file: after the restart of a machine whose clock was ahead."""
    wall, steady = [1_700_000_000_000_000_000 + round(YEARS * 1e9)], [5_000_000_000]

    def connect(boot: str) -> Session:
        clock = ackflow.clock.FileClock(lambda: wall[0], lambda: steady[0], boot)
        return ackflow.connect(tmp_path / "a.db", clock=clock, upkeep=False)

    with connect("first") as q:
        q.push("q", "a")
        q.pop("q", group="g", lease_seconds=30)
    wall[0] -= round(YEARS * 1e9)
    with connect("second") as q:
        q.push("q", "b")
        q.upkeep()
        assert pop_data(q) == ["b"]
        wall[0] += 30_000_000_000
        steady[0] += 30_000_000_000
        assert pop_data(q) == ["a"]


def test_a_server_whose_clock_was_ahead_while_no_broker_was_left_running(postgres_url: str) -> None:
    """The row of a broker that is gone shows it."""
    ahead = VirtualClock(time.time() + YEARS)
    with ackflow.connect(postgres_url, clock=ahead, upkeep=False) as q:
        q.push("q", "a")
        q.pop("q", group="g", lease_seconds=30)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("update ackflow.writes set at = now() + interval '3650 days'")
    for _ in range(2):
        with ackflow.connect(postgres_url, upkeep=False) as q:
            q.push("q", "b")
            q.upkeep()
            (lease,) = q.leases("q")
            assert 0 < (lease.expires_at - lease.acquired_at).total_seconds() <= 30
            assert abs(lease.expires_at.timestamp() - time.time()) < 60
            assert max(created(q)) < time.time() + 10
