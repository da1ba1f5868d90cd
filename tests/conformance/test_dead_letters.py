"""Dead letters: listing, counting, summary, redrive and purge; one per message and group."""

from typing import Any

import pytest

from ackflow import Item, Session, VirtualClock
from ackflow.errors import GroupNotFound, NotFound, QueueNotFound
from ackflow.options import QUEUE_MODE

START = 1_700_000_000.0


def bury(
    q: Session, data: Any = 1, reason: str | None = "bad", *, group: str = QUEUE_MODE, **push: Any
) -> str:
    """Push one message and reject it in one group; answers with its id."""
    (id,) = q.push("orders", data, **push)
    for message in q.pop("orders", group=group, batch=1000):
        if message.id == id:
            message.reject(reason)
        else:
            message.ack()
    return id


def reasons(q: Session, **which: Any) -> list[str | None]:
    return [letter.reason for letter in q.dead_letters("orders", **which).items]


# what a dead letter tells


@pytest.mark.every_store
def test_a_dead_letter_tells_everything_about_its_message(q: Session, clock: VirtualClock) -> None:
    (id,) = q.push(
        "orders", [Item(data={"n": 1}, transaction_id="t", headers={"h": "v"})],
        partition="eu", priority=4,
    )  # fmt: skip
    clock.advance(10)
    (message,) = q.pop("orders", group="billing", consumer="worker-1")
    message.nack("first try")
    clock.advance(5)
    (message,) = q.pop("orders", group="billing", consumer="worker-2")
    message.reject("no such customer: 17")
    (letter,) = q.dead_letters("orders").items
    assert letter.message_id == id
    assert (letter.queue, letter.group, letter.partition, letter.priority) == (
        "orders", "billing", "eu", 4,
    )  # fmt: skip
    assert (letter.kind, letter.reason) == ("rejected", "no such customer: 17")
    assert (letter.deliveries, letter.failures) == (2, 1)
    assert letter.created_at.timestamp() == START
    assert letter.died_at.timestamp() == START + 15
    assert letter.consumer == "worker-2"
    assert (letter.data, letter.raw) == ({"n": 1}, b'{"n":1}')
    assert (letter.transaction_id, letter.headers) == ("t", {"h": "v"})


def test_a_dead_letter_of_bytes_is_bytes(q: Session) -> None:
    bury(q, b"\x00\xff")
    (letter,) = q.dead_letters("orders").items
    assert letter.data == b"\x00\xff"
    assert letter.is_json is False
    assert letter.transaction_id == letter.message_id


@pytest.mark.every_store
def test_every_kind_of_death_is_named(q: Session, clock: VirtualClock) -> None:
    q.group("orders", "g", retry_limit=1, max_deliver=1)
    q.push("orders", ["nacked", "rejected", "dead-lettered", "lease ran out"])
    nacked, rejected, dead, _ = q.pop("orders", group="g", batch=4)
    nacked.nack("why 1")
    rejected.reject("why 2")
    dead.dead_letter("why 3")
    clock.advance(300)
    q.configure("orders", max_wait_seconds=60)
    q.push("orders", "waited")
    clock.advance(60)
    q.upkeep()
    found = {d.data: (d.kind, d.reason) for d in q.dead_letters("orders").items}
    assert found["nacked"] == ("failed", "why 1")
    assert found["rejected"] == ("rejected", "why 2")
    assert found["dead-lettered"] == ("failed", "why 3")
    assert found["lease ran out"][0] == "max_deliver"
    assert found["waited"][0] == "max_wait"


def test_a_dead_letter_belongs_to_one_message_and_one_group(q: Session) -> None:
    q.push("orders", [1, 2])
    for group in ("a", "b"):
        for message in q.pop("orders", group=group, batch=2):
            message.reject(f"{group}{message.data}")
    q.pop("orders", group="c", batch=2, auto_ack=True)
    assert sorted(map(str, reasons(q))) == ["a1", "a2", "b1", "b2"]
    assert {(d.group, d.data): d.reason for d in q.dead_letters("orders").items} == {
        ("a", 1): "a1", ("a", 2): "a2", ("b", 1): "b1", ("b", 2): "b2",
    }  # fmt: skip
    assert [q.group_stats("orders", g).dead_letters for g in "abc"] == [2, 2, 0]
    assert q.queue_stats("orders").dead_letters == 4


@pytest.mark.every_store
def test_a_dead_letter_outlives_its_message(q: Session, clock: VirtualClock) -> None:
    bury(q, "kept")
    clock.advance(10 * 24 * 3600)
    q.upkeep()
    q.upkeep()
    assert q.browse("orders").items == []
    assert [d.data for d in q.dead_letters("orders").items] == ["kept"]
    q.purge("orders")
    assert q.dead_letters("orders").total == 1


# lists


def test_dead_letters_are_listed_newest_first(q: Session, clock: VirtualClock) -> None:
    for reason in "abc":
        bury(q, reason=reason)
        clock.advance(1)
    assert reasons(q) == ["c", "b", "a"]


@pytest.fixture
def many(q: Session, clock: VirtualClock) -> Session:
    """Dead letters a to f: two groups, two partitions, two kinds, ten seconds apart."""
    for n, reason in enumerate("abcdef"):
        partition = "eu" if n < 4 else "us"
        (id,) = q.push("orders", reason, partition=partition)
        message = next(m for m in q.pop("orders", group="gh"[n % 2], batch=9) if m.id == id)
        text = f"{reason}: {'time' if n < 2 else 'form'} out"
        message.reject(text) if n % 3 else message.dead_letter(text)
        clock.advance(10)
    return q


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ({}, "fedcba"),
        ({"group": "g"}, "eca"),
        ({"group": "h"}, "fdb"),
        ({"partition": "eu"}, "dcba"),
        ({"partition": "us"}, "fe"),
        ({"kind": "failed"}, "da"),
        ({"kind": "rejected"}, "fecb"),
        ({"error": "time"}, "ba"),
        ({"error": "form out"}, "fedc"),
        ({"error": "%"}, ""),
        ({"since": START + 20}, "fedc"),
        ({"until": START + 20}, "ba"),
        ({"since": START + 20, "until": START + 40}, "dc"),
        ({"group": "g", "partition": "eu", "error": "form"}, "c"),
        ({"group": "g", "kind": "failed", "partition": "us"}, ""),
    ],
)
def test_filters_pick_dead_letters_and_the_total_counts_them(
    many: Session, which: dict[str, Any], wanted: str
) -> None:
    page = many.dead_letters("orders", **which)
    assert "".join(d.data for d in page.items) == wanted
    assert page.total == len(wanted)


@pytest.mark.every_store
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_pages_follow_each_other_until_there_are_no_more(many: Session, limit: int) -> None:
    found, after = "", None
    for _ in range(10):
        page = many.dead_letters("orders", limit=limit, after=after)
        assert page.total == 6
        assert 0 < len(page.items) <= limit
        found += "".join(d.data for d in page.items)
        after = page.next
        if after is None:
            break
    assert found == "fedcba"


def test_a_page_is_not_moved_by_what_dies_meanwhile(many: Session) -> None:
    page = many.dead_letters("orders", limit=2)
    bury(many, "new", "new", group="g")
    rest = many.dead_letters("orders", limit=9, after=page.next)
    assert "".join(d.data for d in rest.items) == "dcba"


def test_an_offset_skips_the_newest(many: Session) -> None:
    page = many.dead_letters("orders", limit=2, offset=3)
    assert "".join(d.data for d in page.items) == "cb"
    assert page.total == 6


def test_unknown_queues_groups_and_partitions_are_named(many: Session) -> None:
    with pytest.raises(QueueNotFound):
        many.dead_letters("nowhere")
    with pytest.raises(GroupNotFound):
        many.dead_letters("orders", group="nobody")
    with pytest.raises(NotFound, match="no partition 'mars'"):
        many.dead_letters("orders", partition="mars")


# the summary


@pytest.mark.every_store
def test_the_summary_counts_by_the_error_before_the_first_colon(
    q: Session, clock: VirtualClock
) -> None:
    for reason in ("timeout: 5 s", "timeout: 7 s", "timeout", "bad form: a: b", None):
        bury(q, reason=reason)
        clock.advance(1)
    summary = q.dead_summary("orders")
    assert [(s.error, s.count) for s in summary] == [("timeout", 3), ("", 1), ("bad form", 1)]
    first = summary[0]
    assert (first.group, first.kind) == (QUEUE_MODE, "rejected")
    assert first.first_at.timestamp() == START
    assert first.last_at.timestamp() == START + 2


def test_the_summary_keeps_groups_and_kinds_apart(q: Session) -> None:
    q.push("orders", [1, 2])
    for group in ("a", "b"):
        first, second = q.pop("orders", group=group, batch=2)
        first.reject("x: 1")
        second.dead_letter("x: 2")
    found = {(s.group, s.kind, s.error, s.count) for s in q.dead_summary("orders")}
    assert found == {(g, k, "x", 1) for g in "ab" for k in ("rejected", "failed")}
    assert {s.group for s in q.dead_summary("orders", "a")} == {"a"}


# redrive to the origin


def test_redrive_sends_back_for_that_group_alone_with_a_new_id_and_counters_at_0(
    q: Session,
) -> None:
    q.group("orders", "other")
    q.push("orders", [Item(data="x", transaction_id="t", headers={"h": "v"})], partition="eu")
    for _ in range(3):
        (message,) = q.pop("orders", group="g")
        message.nack("no")
    (letter,) = q.dead_letters("orders").items
    assert (letter.deliveries, letter.failures) == (3, 3)
    assert q.redrive("orders") == 1
    (again,) = q.pop("orders", group="g", batch=9)
    assert again.id != letter.message_id
    assert (again.data, again.partition) == ("x", "eu")
    assert (again.transaction_id, again.headers) == ("t", {"h": "v"})
    assert (again.deliveries, again.failures) == (1, 0)
    assert [m.id for m in q.pop("orders", group="other", batch=9)] == [letter.message_id]
    assert q.dead_letters("orders").total == 0
    again.ack()


def test_a_redriven_message_may_die_again(q: Session) -> None:
    bury(q, reason="first")
    q.redrive("orders")
    (message,) = q.pop("orders")
    message.reject("second")
    (letter,) = q.dead_letters("orders").items
    assert (letter.reason, letter.message_id) == ("second", message.id)
    assert q.group_stats("orders").counts.dead == 1


def test_redriven_messages_keep_their_order_and_go_to_the_end(q: Session) -> None:
    q.push("orders", ["a", "b", "c"])
    batch = q.pop("orders", batch=3)
    for message in reversed(batch):
        message.reject("no")
    q.push("orders", "new")
    q.redrive("orders")
    assert [m.data for m in q.pop("orders", batch=9)] == ["new", "a", "b", "c"]


def test_redrive_takes_all_that_match(many: Session) -> None:
    assert many.redrive("orders", group="g", error="form") == 2
    assert many.dead_letters("orders").total == 4
    given = many.pop("orders", group="g", batch=99)
    assert {m.data for m in given if m.redelivered} == {"c", "e"}
    assert [m.data for m in given if not m.redelivered] == ["f"]


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({"group": "h"}, "eca"),
        ({"partition": "us"}, "dcba"),
        ({"kind": "failed"}, "fecb"),
        ({"error": "time"}, "fedc"),
        ({"since": START + 20}, "ba"),
        ({"until": START + 20}, "fedc"),
        ({"limit": 2}, "fedc"),
        ({"limit": 0}, "fedcba"),
        ({}, ""),
    ],
)
def test_redrive_follows_its_filters(many: Session, which: dict[str, Any], left: str) -> None:
    assert many.redrive("orders", **which) == 6 - len(left)
    assert "".join(d.data for d in many.dead_letters("orders").items) == left


def letter_ids(q: Session) -> dict[str, int]:
    return {d.data: d.id for d in q.dead_letters("orders").items}


def test_redrive_takes_the_selected_ones(many: Session) -> None:
    ids = letter_ids(many)
    assert many.redrive("orders", ids=[ids["b"], ids["e"]]) == 2
    assert set(letter_ids(many)) == set("acdf")


def test_ids_that_do_not_exist_do_not_keep_others_from_being_sent(many: Session) -> None:
    ids = letter_ids(many)
    assert many.redrive("orders", ids=[999_999, ids["b"], 888_888, ids["e"]]) == 2
    assert set(letter_ids(many)) == set("acdf")


def test_an_id_given_twice_is_sent_once(q: Session) -> None:
    bury(q, "once")
    (id,) = letter_ids(q).values()
    assert q.redrive("orders", ids=[id, id]) == 1
    assert [m.data for m in q.pop("orders", batch=9)] == ["once"]
    assert q.group_stats("orders").counts.dead == 0


def test_ids_of_another_queue_are_left_alone(q: Session) -> None:
    bury(q)
    q.push("bills", 1)
    q.pop("bills")[0].reject()
    (bill,) = q.dead_letters("bills").items
    assert q.redrive("orders", ids=[bill.id]) == 0
    assert q.purge_dead("orders", ids=[bill.id]) == 0
    assert q.dead_letters("bills").total == 1


@pytest.mark.every_store
def test_redrive_is_not_limited_to_one_slice(q: Session) -> None:
    q.push("orders", list(range(1203)))
    q.reject(q.pop("orders", batch=2000), "no")
    ids = [d.id for d in q.dead_letters("orders", limit=10_000).items]
    assert q.redrive("orders", ids=ids[:601]) == 601
    assert q.redrive("orders") == 602
    assert q.dead_letters("orders").total == 0
    assert sorted(m.data for m in q.pop("orders", batch=2000)) == list(range(1203))


def test_redrive_keeps_the_order_of_more_than_one_slice(q: Session) -> None:
    q.push("orders", list(range(1203)))
    q.reject(q.pop("orders", batch=2000), "no")
    assert q.redrive("orders") == 1203
    assert [m.data for m in q.pop("orders", batch=2000)] == list(range(1203))


def test_dead_letters_are_read_by_their_ids(many: Session) -> None:
    ids = letter_ids(many)
    page = many.dead_letters("orders", ids=[ids["b"], 999_999, ids["e"]])
    assert [letter.data for letter in page.items] == ["e", "b"]
    assert (page.total, page.next) == (2, None)


# redrive to another queue


@pytest.mark.every_store
@pytest.mark.one_database
def test_redrive_to_another_queue_reaches_every_group_there(q: Session) -> None:
    q.group("repair", "b")
    bury(q, "x", partition="eu", priority=2)
    assert q.redrive("orders", to="repair") == 1
    assert q.dead_letters("orders").total == 0
    assert list(q.pop("orders", batch=9)) == []
    for group in "ab":
        (message,) = q.pop("repair", group=group)
        assert (message.data, message.partition, message.priority) == ("x", "eu", 2)
        assert (message.deliveries, message.failures) == (1, 0)


def test_redrive_counts_what_was_dead_as_done(q: Session) -> None:
    bury(q)
    before = q.group_stats("orders").counts
    assert (before.dead, before.done, before.pushed) == (1, 0, 1)
    q.redrive("orders")
    after = q.group_stats("orders").counts
    assert (after.dead, after.done, after.ready, after.pushed) == (0, 1, 1, 2)


# purge


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({"group": "h"}, "eca"),
        ({"partition": "us"}, "dcba"),
        ({"kind": "failed"}, "fecb"),
        ({"error": "time"}, "fedc"),
        ({"since": START + 20}, "ba"),
        ({"until": START + 20}, "fedc"),
        ({}, ""),
    ],
)
def test_purging_throws_away_what_matches(many: Session, which: dict[str, Any], left: str) -> None:
    assert many.purge_dead("orders", **which) == 6 - len(left)
    assert "".join(d.data for d in many.dead_letters("orders").items) == left


def test_purging_takes_the_selected_ones(many: Session) -> None:
    ids = letter_ids(many)
    assert many.purge_dead("orders", ids=[123_456, ids["a"], ids["a"], ids["f"]]) == 2
    assert set(letter_ids(many)) == set("bcde")


def test_what_is_purged_is_not_delivered_again_and_is_counted_as_purged(q: Session) -> None:
    bury(q)
    assert q.purge_dead("orders") == 1
    assert q.purge_dead("orders") == 0
    assert list(q.pop("orders", batch=9)) == []
    counts = q.group_stats("orders").counts
    assert (counts.dead, counts.purged, counts.pushed) == (0, 1, 1)


# sought back


def test_after_seeking_back_a_message_that_dies_again_is_one_dead_letter(q: Session) -> None:
    bury(q, reason="first", group="g")
    q.seek("orders", "g", to="start")
    assert q.group_stats("orders", "g").counts.dead == 0
    q.pop("orders", group="g")[0].reject("second")
    page = q.dead_letters("orders")
    assert [(d.reason, page.total) for d in page.items] == [("second", 1)]
    counts = q.group_stats("orders", "g").counts
    assert (counts.dead, counts.pushed) == (1, 1)


def test_purging_a_dead_letter_from_before_a_seek_changes_no_count(q: Session) -> None:
    bury(q, reason="first", group="g")
    q.seek("orders", "g", to="start")
    q.purge_dead("orders")
    counts = q.group_stats("orders", "g").counts
    assert (counts.ready, counts.dead, counts.purged, counts.pushed) == (1, 0, 0, 1)


def test_ids_and_filters_given_together_must_both_fit(q: Session) -> None:
    ids = []
    for group, verb in [("g", "reject"), ("h", "dead_letter")]:
        q.push("orders", group)
        q.group("orders", group)
        for message in q.pop("orders", group=group, batch=9):
            getattr(message, verb)("no")
    ids = [letter.id for letter in q.dead_letters("orders").items]
    assert q.purge_dead("orders", ids=ids, group="g", kind="failed") == 0
    assert q.redrive("orders", ids=ids, error="yes") == 0
    assert {d.group for d in q.dead_letters("orders", ids=ids, kind="rejected").items} == {"g"}
    assert q.purge_dead("orders", ids=ids, kind="rejected") == 1
    with pytest.raises(NotFound):
        q.purge_dead("orders", ids=ids, group="nobody")


def test_dead_letters_named_by_their_ids_come_page_by_page(q: Session) -> None:
    q.push("orders", list(range(5)))
    q.reject(q.pop("orders", batch=5), "no")
    ids = [letter.id for letter in q.dead_letters("orders").items]
    found, after = [], None
    for _ in range(3):
        page = q.dead_letters("orders", ids=ids[1:], limit=2, after=after)
        assert page.total == 4
        found += [letter.id for letter in page.items]
        after = page.next
        if after is None:
            break
    assert (found, after) == (ids[1:], None)
    assert [d.id for d in q.dead_letters("orders", ids=ids, offset=4).items] == ids[4:]


def test_the_last_error_before_the_reason_is_looked_through_too(q: Session) -> None:
    q.push("orders", 1)
    q.pop("orders")[0].nack("timeout: bank")
    q.pop("orders")[0].reject("gave up")
    for error in ("bank", "gave"):
        assert [d.error for d in q.dead_letters("orders", error=error).items] == ["timeout: bank"]
    assert q.dead_letters("orders", error="shop").items == []
