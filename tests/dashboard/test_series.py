"""Charts, the audit and search, as the broker keeps and answers them."""

import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker import audit
from ackflow.broker.broker import Broker
from ackflow.broker.core import dead_letters
from ackflow.broker.core.by_hand.dead_select import (
    DeadSelection,
    DeadStep,
    normalized,
    purge_step,
    redrive_step,
)
from ackflow.broker.requests import DeadFilter
from ackflow.broker.sampling import live_stats, series
from ackflow.broker.sampling.series import HOUR, MINUTE, Point, decode, encode, intervals
from ackflow.broker.views import dead_groups
from ackflow.broker.views.metrics import MetricsSnapshot, snapshot
from ackflow.broker.views.search import Search, search
from ackflow.errors import InvalidArgument, NotFound
from ackflow.options import QUEUE_MODE
from ackflow.server.console import messages, ui
from ackflow.server.console.masking import MASK, Masking

from ..running import Running
from .seed import seed


def broker_of(q: Session) -> Broker:
    assert isinstance(q.broker, Broker)
    return q.broker


def minute(q: Session, clock: VirtualClock, count: int = 1) -> None:
    for _ in range(count):
        clock.advance(60)
        broker_of(q).sampler.run_once()


def chart(q: Session, queue: str, step: int = MINUTE, count: int = 5) -> list[series.Interval]:
    broker = broker_of(q)
    line = broker.stats.take().queues[queue]
    return broker.look(intervals, line.id, step, count, broker.clock.now())


def rows(q: Session) -> int:
    return int(broker_of(q).read(lambda tx: tx.value("count_series")))


@pytest.fixture
def q(clock: VirtualClock) -> Iterator[Session]:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as session:
        yield session


def test_points_survive_packing() -> None:
    points = [Point(60 * n, (n * n, n, n, 0, 1), 5 - n, n, 0, 3, 10 * n) for n in range(6)]
    assert list(decode(encode(points))) == points


def test_a_queue_that_is_new_counts_from_its_first_message_on_as_in_the_total(
    q: Session, clock: VirtualClock
) -> None:
    q.push("a", 0)
    minute(q, clock, 2)
    q.push("new", list(range(60)))
    minute(q, clock, 2)
    broker = broker_of(q)
    total = broker.look(intervals, series.ALL_QUEUES, MINUTE, 3, broker.clock.now())
    assert [one.rates.pushed for one in total] == [0, 1.0, 0]
    assert [one.rates.pushed for one in chart(q, "new", count=3)] == [0, 1.0, 0]


def test_a_chart_shows_the_rate_of_each_minute(q: Session, clock: VirtualClock) -> None:
    q.push("a", 0)
    minute(q, clock, 2)
    q.push("a", list(range(119)))
    minute(q, clock)
    q.push("a", list(range(60)))
    q.ack(q.pop("a", batch=30))
    minute(q, clock)
    found = chart(q, "a", count=3)
    assert [one.rates.pushed for one in found] == [0, pytest.approx(119 / 60, abs=0.001), 1.0]
    assert [one.rates.acked for one in found] == [0, 0, 0.5]
    assert found[-1].ready == 150


def test_a_quiet_time_is_not_blamed_on_the_minute_after(q: Session, clock: VirtualClock) -> None:
    q.push("a", 0)
    minute(q, clock, 2)
    minute(q, clock, 7)
    q.push("a", list(range(60)))
    minute(q, clock)
    assert [one.rates.pushed for one in chart(q, "a", count=4)] == [0, 0, 0, 1.0]


def test_queues_without_a_change_cost_no_row(q: Session, clock: VirtualClock) -> None:
    for n in range(50):
        q.push(f"quiet-{n}", 1)
    minute(q, clock, 3)
    assert rows(q) == 0
    q.push("quiet-7", 1)
    minute(q, clock)
    assert rows(q) == 2  # that queue, and all queues together


def test_many_busy_queues_are_written_in_turn(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "AT_ONCE", 20)
    for n in range(100):
        q.push(f"busy-{n}", 1)
    minute(q, clock, 2)
    written = []
    for _ in range(8):
        for n in range(100):
            q.push(f"busy-{n}", 1)
        minute(q, clock)
        written.append(rows(q))
    assert written[0] == 1, "only all queues together is written at once"
    assert written[-1] == 101
    broker_of(q).sampler.flush()
    assert [one.rates.pushed for one in chart(q, "busy-3", count=8)] == [
        pytest.approx(1 / 60, abs=0.001)
    ] * 8


def test_old_points_are_dropped_and_hours_stay(q: Session, clock: VirtualClock) -> None:
    q.push("a", 0)
    minute(q, clock, 2)
    for _ in range(3):
        q.push("a", list(range(360)))
        clock.advance(3600)
        broker_of(q).sampler.run_once()
    before = rows(q)
    clock.advance(2 * 86_400)
    for _ in range(2):
        clock.advance(3600)
        broker_of(q).sampler.run_once()
    assert rows(q) < before
    broker_of(q).sampler.flush()
    assert max(one.rates.pushed for one in chart(q, "a", HOUR, 72)) == pytest.approx(0.1, abs=0.01)


def test_the_number_of_rows_is_limited(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MAX_ROWS", 10)
    q.push("a", 0)
    for n in range(30):
        q.push(f"many-{n}", 1)
    minute(q, clock, 2)
    for _ in range(4):
        for n in range(30):
            q.push(f"many-{n}", 1)
        minute(q, clock, 60)
    assert rows(q) < 80, "without a limit there would be more than 150"


def test_a_process_without_the_turn_takes_no_samples(q: Session, clock: VirtualClock) -> None:
    broker = broker_of(q)
    until = clock.now() + 3_600_000_000
    broker.do(lambda tx: tx.run("put_meta", "upkeep", f"another {until}"), False)
    for n in range(4):
        q.push("a", n)
        minute(q, clock)
    assert rows(q) == 0


def test_the_audit_keeps_the_newest(q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_ROWS", 50)
    broker, actor = broker_of(q), audit.Actor("me", "here")
    for n in range(300):
        broker.do(audit.record, False, actor, "pause", "q", {"n": n, "text": "x" * 500, "no": None})
    found = broker.look(audit.entries, None, 1_000)
    assert found[0].details == {"n": 299, "text": "x" * 200 + "…"}
    assert 50 <= len(found) <= 150
    assert [one.id for one in broker.look(audit.entries, found[9].id, 2)] == [
        found[10].id, found[11].id,
    ]  # fmt: skip


def test_a_refused_change_leaves_no_trace_in_the_audit(q: Session) -> None:
    from ackflow.broker.core.admin.admin import pause

    broker, actor = broker_of(q), audit.Actor("me", "here")
    with pytest.raises(NotFound):
        broker.do(audit.audited(pause, actor, "pause", "none", {}), True, "none", None, True)
    assert broker.look(audit.entries, None, 10) == []


def find(q: Session, **given: object) -> list[int]:
    request = Search(queue="s", seconds=30, **given)  # type: ignore[arg-type]
    request.check()
    return [one.data["n"] for one in broker_of(q).look(search, request).items]


def test_messages_are_found_by_state(q: Session, clock: VirtualClock) -> None:
    q.push("s", [{"n": n} for n in range(10)])
    q.ack(q.pop("s", batch=3))
    held = q.pop("s", batch=3)
    held[0].nack("no", delay=60)
    held[1].release()
    q.push("s", {"n": 99}, delay=600)
    assert find(q, group=QUEUE_MODE, state="settled") == [0, 1, 2]
    assert find(q, group=QUEUE_MODE, state="leased") == [5]
    assert find(q, group=QUEUE_MODE, state="waiting") == [3, 99]
    assert find(q, group=QUEUE_MODE, state="ready") == [4, 6, 7, 8, 9]
    clock.advance(61)
    assert find(q, group=QUEUE_MODE, state="waiting") == [99]
    with pytest.raises(InvalidArgument):
        find(q, state="leased")


def test_filters_are_combined(q: Session, clock: VirtualClock) -> None:
    for n in range(20):
        item = ackflow.Item(
            data={"n": n, "text": f"number {n}"}, headers={"tenant": "ab"[n % 2]},
            transaction_id=f"tx-{n:03}", partition=f"p{n % 3}", priority=n % 2,
        )  # fmt: skip
        q.push("s", item)
        clock.advance(10)
    assert find(q, transaction_id="tx-007") == [7]
    assert find(q, text="number 1", partition="p1", header="tenant=b") == [1, 13, 19]
    assert find(q, priority=0, text="number 12") == [12]
    now = clock.now()
    assert sorted(find(q, since=now - 45_000_000)) == [16, 17, 18, 19]
    assert sorted(find(q, until=now - 175_000_000)) == [0, 1, 2]
    one = next(one for one in q.browse("s") if one.data["n"] == 5)
    assert find(q, id=one.id) == [5]
    assert 5 in find(q, id=one.id[-12:])
    assert find(q, id="ffffffffffff") == []


def test_a_search_is_continued_where_it_stopped(q: Session) -> None:
    for partition in range(7):
        q.push("s", [{"n": 100 * partition + n} for n in range(30)], partition=str(partition))
    seen, after, pages = [], None, 0
    while pages < 50:
        pages += 1
        page = broker_of(q).look(search, Search(queue="s", limit=25, seconds=30.0, after=after))
        seen += [one.data["n"] for one in page.items]
        after = page.next
        if after is None:
            break
    assert seen == [100 * partition + n for partition in range(7) for n in range(30)]
    assert pages > 8


def test_a_search_that_finds_nothing_stops_at_its_time(q: Session) -> None:
    for n in range(40):
        q.push("s", [{"n": n, "pad": "x" * 2_000}] * 500)
    request = Search(queue="s", text="not there", seconds=0.001)
    page = broker_of(q).look(search, request)
    assert page.items == []
    assert page.next is not None
    assert page.scanned < 20_000


def test_a_long_search_reads_several_snapshots(q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SNAPSHOT_SECONDS", 0.001)
    for n in range(40):
        q.push("s", [{"n": n, "pad": "x" * 2_000}] * 500)
    snapshots, look = list[object](), broker_of(q).look

    def counted(verb: Callable[..., object], *args: object, **kwargs: object) -> object:
        snapshots.append(verb)
        return look(verb, *args, **kwargs)

    monkeypatch.setattr(broker_of(q), "look", counted)
    running = Running(q)
    try:
        query: dict[str, str] = {"text": "not there", "seconds": "5"}
        page = httpx.get(f"{running.url}/v1/queues/s/messages", params=query, timeout=30).json()
        assert (page["items"], page["next"], page["scanned"]) == ([], None, 20_000)
        assert snapshots.count(search) > 3
        snapshots.clear()
        query = {"text": "x", "seconds": "5", "limit": "30"}
        page = httpx.get(f"{running.url}/v1/queues/s/messages", params=query, timeout=30).json()
        assert (len(page["items"]), page["next"] is None) == (30, False)
    finally:
        running.stop()


def test_dead_letters_of_an_error_are_counted_over_several_reads(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_groups, "SLICE", 2)
    q.push("orders", list(range(7)))
    for n, message in enumerate(q.pop("orders", batch=7)):
        clock.advance(1)
        message.reject("odd" if n == 3 else f"customer {n} not found")
    letters = q.dead_letters("orders").items  # the newest first
    same, odd = [one for one in letters if one.reason != "odd"], letters[3]
    found = broker_of(q).look(dead_groups.dead_groups, None, None, 9.0, 1_000)
    assert [(one.error, one.count) for one in found.items] == [
        ("customer # not found", 6), ("odd", 1),
    ]  # fmt: skip
    first, second = found.items
    assert (first.newest_id, first.oldest_id) == (same[0].id, same[-1].id)
    assert (first.last_at, first.first_at) == (same[0].died_at, same[-1].died_at)
    assert first.message_ids == [one.message_id for one in same[:3]]
    assert first.example == "customer 6 not found"
    assert (second.newest_id, second.oldest_id, second.message_ids) == (
        odd.id, odd.id, [odd.message_id],
    )  # fmt: skip
    assert (found.scanned, found.next) == (7, None)


def test_errors_are_compared_without_what_differs() -> None:
    same = [
        "customer 17 not found", "customer 4711 not found",
    ]  # fmt: skip
    assert len({normalized(text) for text in same}) == 1
    assert normalized("timeout after 30.5 s at 10.0.0.1:80") == "timeout after # s at #"
    assert (
        normalized("key 'a-b' of 0xFF and d2f1c3a4-0000-8000-8000-000000000001")
        == "key … of # and #"
    )
    assert normalized("first line\nsecond line") == "first line"
    assert normalized("0XFF ABCDEF1 abcdef v2 x12 1,5 DEADBEEF-12") == "# # abcdef v2 x12 # #"


@pytest.mark.parametrize("way", ["redrive", "purge"])
@pytest.mark.parametrize("chosen", ["all", "by error", "by id"])
def test_steps_over_large_dead_letters_reach_all_of_them(
    q: Session, monkeypatch: pytest.MonkeyPatch, way: str, chosen: str
) -> None:
    monkeypatch.setattr(dead_letters, "SLICE_BYTES", 1_000)
    q.push("large", ["x" * 400 for _ in range(20)])
    for message in q.pop("large", batch=20):
        message.reject("bad 1")
    ids = sorted(one.id for one in q.dead_letters("large"))
    which = DeadSelection(
        queue="large", error="bad #" if chosen == "by error" else None,
        ids=ids if chosen == "by id" else None,
    )  # fmt: skip
    broker, steps, after = broker_of(q), list[DeadStep](), 0
    while not steps or steps[-1].next is not None:
        if way == "redrive":
            steps.append(broker.do(redrive_step, True, which, after, 1_000, None))
        else:
            steps.append(broker.do(purge_step, True, which, after, 1_000))
        after = steps[-1].next or 0
    assert sum(step.done for step in steps) == 20
    assert [id for step in steps for id in step.items] == ids
    assert not q.dead_letters("large").items
    assert len(steps) > 5


def test_no_call_redrives_more_than_a_slice(q: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "SLICE", 10)
    q.push("many", list(range(25)))
    for message in q.pop("many", batch=25):
        message.reject("bad")
    which = DeadFilter("many")
    assert broker_of(q).do(dead_letters.redrive, True, which, None, 100_000) == 10
    assert broker_of(q).do(dead_letters.purge_dead, True, which, 100_000) == 10
    assert q.redrive("many") == 5


def test_masking_keeps_every_other_byte() -> None:
    masking = Masking(["password", "card.*", "Secret*"])
    raw = b'{"n":1.10,"big":12345678901234567890,"a":[{"password":"x"}],"card":{"no":"1","y":{}},"secret_key":1}'
    assert (
        masking.payload(raw)
        == (
            '{"n":1.10,"big":12345678901234567890,"a":[{"password":"••••"}],'
            '"card":{"no":"••••","y":"••••"},"secret_key":"••••"}'
        ).encode()
    )
    assert masking.headers({"Password": "x", "other": "y"}) == {"Password": MASK, "other": "y"}
    assert Masking([]).payload(raw) == raw
    assert masking.payload(b'"plain"') == b'"plain"'


def test_the_dashboard_and_top_count_alike(clock: VirtualClock) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        seed(q, clock, history=5)
        lines = broker_of(q).stats.take().queues
        assert sorted(lines) == [queue.name for queue in q.queues()]
        for queue in q.queues():
            line = lines[queue.name]
            assert (line.paused, line.stored) == (queue.paused, queue.messages)
            assert len(line.groups) == len(queue.groups)
            for group in line.groups:
                one = q.group_stats(queue.name, group.name)
                counts = one.counts
                assert (group.ready, group.leased, group.waiting, group.dead, group.lag) == (
                    counts.ready, counts.leased, counts.waiting, counts.dead, counts.lag,
                )  # fmt: skip
                assert (group.acked, group.failed) == (one.consumed, one.failed)


def test_a_snapshot_is_shared_and_rested_after(q: Session, clock: VirtualClock) -> None:
    q.push("a", 1)
    board = broker_of(q).stats
    first = board.get()
    q.push("a", 2)
    assert board.get() is first
    clock.advance(10)
    q.push("a", list(range(30)))
    line = board.take().queues["a"]
    assert line.rates is not None
    assert line.rates.pushed == pytest.approx(3.1)


def test_rates_go_on_when_the_clock_is_set_back(q: Session, clock: VirtualClock) -> None:
    board = broker_of(q).stats
    clock.step(10 * 365 * 86_400.0)
    q.push("a", 1)
    board.take()
    clock.step(-10 * 365 * 86_400.0)
    for _ in range(20):
        q.push("a", list(range(100)))
        clock.advance(50)
        rates = board.take().queues["a"].rates
        assert rates is not None
        assert rates.pushed == pytest.approx(2)
    assert len(board._kept) <= 5


def test_a_slow_snapshot_is_taken_beside_those_who_ask(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stats, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(live_stats, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(live_stats, "REST", 0.0)
    q.push("a", 1)
    go, broker = threading.Event(), broker_of(q)

    def read() -> MetricsSnapshot:
        assert go.wait(30)
        return broker.read(snapshot)

    go.set()
    board = live_stats.StatsBoard(read)
    first = board.get()
    go.clear()
    q.push("a", 2)
    assert board.get() is first, "it does not wait for the next one"
    assert board.get() is first
    go.set()
    deadline = time.monotonic() + 30
    while board.get().queues["a"].pushed != 2:
        assert time.monotonic() < deadline


def test_the_page_of_a_message_ends_leases_of_its_own_queue_only(
    q: Session, clock: VirtualClock
) -> None:
    """Thousands of leases may be over at once; a page that ended them all took longer than 1 s."""
    ids = [q.push(name, 1)[0] for name in ("a", "b", "c")]
    for name in ("a", "b", "c"):
        q.pop(name)
    clock.advance(400)

    def over() -> int:
        return broker_of(q).read(lambda tx: len(tx.all("groups_with_expired", tx.now)))

    assert over() == 3
    running = Running(q)
    try:
        page = httpx.get(f"{running.url}/v1/queues/a/messages/{ids[0]}", timeout=30).json()
    finally:
        running.stop()
    (fate,) = page["groups"]
    assert fate["why"]["state"] == "ready"
    assert [event["kind"] for event in fate["events"]] == ["pushed", "delivered", "expired"]
    assert over() == 2


def test_dead_letters_are_counted_again_when_their_number_changes(
    q: Session, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "DEAD_REST", 0.0)
    running = Running(q)

    def counted() -> list[int]:
        broker_of(q).stats.take()
        found = httpx.get(f"{running.url}/v1/dead", timeout=30).json()
        return [one["count"] for one in found["items"]]

    try:
        q.push("a", list(range(9)))
        for message in q.pop("a", batch=4):
            message.reject("bad 1")
        assert counted() == [4]
        with monkeypatch.context() as unused:
            unused.setattr(messages, "dead_groups", None)
            assert counted() == [4], "nothing has changed"
        for message in q.pop("a", batch=2):
            message.reject("bad 2")
        assert counted() == [6]
        q.redrive("a")
        assert counted() == []
    finally:
        running.stop()


def test_the_worst_queue_comes_first(q: Session, clock: VirtualClock) -> None:
    q.push("fine", 1)
    q.ack(q.pop("fine"))
    q.push("old", [1, 2])
    q.ack(q.pop("old"))
    q.push("dead", 1)
    q.pop("dead")[0].reject("x")
    q.push("unread", 1)
    clock.advance(400)
    lines = broker_of(q).stats.take().queues
    trouble = {name: line.trouble for name, line in lines.items() if line.trouble}
    assert trouble == {"old": ["stalled"], "dead": ["dead letters"], "unread": ["no group"]}
    assert max(lines.values(), key=lambda line: line.severity).name == "old"


@pytest.mark.parametrize("path", [
    "messages?since=inf", "messages?since=nan", "messages?until=1e300", "messages?after=9.9e9",
    "messages?after=99999999999999999999.1", "messages?state=leased", "messages?seconds=-1",
    "groups/g/seek?to=1e400&time=true", "groups/g/seek?to=-5", "groups/g/seek?to=never",
])  # fmt: skip
def test_impossible_values_are_refused_as_such(clock: VirtualClock, path: str) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        q.group("s", "g")
        running = Running(q)
        answer = httpx.get(f"{running.url}/v1/queues/s/{path}")
        running.stop()
    assert answer.status_code == 400, answer.text
