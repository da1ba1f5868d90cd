"""What a user may give where: durations as timedeltas, exceptions as reasons, headers, times; and
what is shown of what is given back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ackflow
from ackflow import Item, Session, VirtualClock, validate
from ackflow.errors import InvalidArgument, KeyConflict, LeaseLost
from ackflow.model import Page, when

pytestmark = pytest.mark.every_store

MINUTE = timedelta(minutes=1)


def expires(q: Session, clock: VirtualClock) -> float:
    (lease,) = q.leases("q")
    return (lease.expires_at - when(clock.now())).total_seconds()


def test_every_duration_may_be_a_timedelta(q: Session, clock: VirtualClock) -> None:
    q.group("q", "__QUEUE_MODE__", backoff=[MINUTE, 5], lease_seconds=2 * MINUTE)
    q.configure("q", retention_seconds=timedelta(days=1), ttl_seconds=timedelta(days=1))
    q.push("q", 1, delay=MINUTE)
    assert not q.pop("q", wait=timedelta(0))
    clock.advance(60)
    (message,) = q.pop("q", lease_seconds=MINUTE)
    assert expires(q, clock) == 60
    message.extend(2 * MINUTE)
    assert expires(q, clock) == 120
    q.extend([message], 3 * MINUTE)
    assert expires(q, clock) == 180
    assert message.token is not None
    q.lease(message.token).extend(4 * MINUTE)
    assert expires(q, clock) == 240
    message.nack("later", delay=MINUTE)
    assert not q.pop("q")
    clock.advance(60)
    q.nack(q.pop("q"), delay=MINUTE)
    clock.advance(60)
    assert len(q.pop("q")) == 1


@pytest.mark.parametrize("bad", [timedelta(seconds=-1), "60", True, [1], timedelta(days=10**6)])
def test_an_invalid_duration_is_refused(q: Session, bad: Any) -> None:
    for call in (
        lambda: q.push("q", 1, delay=bad),
        lambda: q.push("q", Item(data=1, delay=bad)),
        lambda: q.pop("q", wait=bad),
        lambda: q.pop("q", lease_seconds=bad),
        lambda: q.consume("q", print, timeout=bad),
        lambda: q.consume("q", print, wait=bad),
    ):
        with pytest.raises(InvalidArgument, match="timedelta"):
            call()


def test_an_exception_may_be_the_reason(q: Session) -> None:
    q.group("q", "g", retry_limit=1)
    q.push("q", [1, 2, 3, 4, 5])
    batch = q.pop("q", group="g", batch=5)
    batch[0].nack(ValueError("no such customer"))
    batch[1].reject(KeyError("id"))
    q.nack([batch[2]], TimeoutError())
    batch[3].dead_letter(ValueError("x"))
    q.transaction().reject(batch[4], OSError("disk")).commit()
    letters = q.dead_letters("q")
    assert {letter.reason or letter.error for letter in letters} == {
        "ValueError: no such customer", "KeyError: 'id'", "TimeoutError", "ValueError: x",
        "OSError: disk",
    }  # fmt: skip


def test_headers_of_a_push_are_those_of_every_message_without_its_own(q: Session) -> None:
    q.push("q", [1, Item(data=2, headers={"a": "own"}), b"3"], headers={"a": "all"})
    q.push("q", {"n": 4}, headers={"a": "one"})
    found = q.pop("q", batch=9)
    assert [m.headers["a"] for m in found] == ["all", "own", "all", "one"]
    with pytest.raises(InvalidArgument):
        q.push("q", 1, headers={"a": 1})  # type: ignore[dict-item]


def test_headers_that_are_no_mapping_are_refused(q: Session) -> None:
    t = q.transaction()
    for wrong in ([("a", "b")], "ab", 5):
        for push in (q.push, t.push):
            with pytest.raises(InvalidArgument, match="headers must be a mapping"):
                push("q", 1, headers=wrong)  # type: ignore[operator]
        with t.headers({"c": "d"}), pytest.raises(InvalidArgument, match="must be a mapping"):
            t.push("q", 1, headers=wrong)  # type: ignore[arg-type]


def test_a_push_may_say_from_when_on_it_is_handed_out(q: Session, clock: VirtualClock) -> None:
    now = clock.now() / 1_000_000
    q.configure("q", delay_seconds=1000)
    q.push("q", "datetime", at=datetime.fromtimestamp(now + 60, UTC))
    q.push("q", ["number"] * 300, at=now + 120)
    q.push("q", [Item(data="item", at=now + 180), Item(data="delay", delay=240)], at=now + 300)
    q.push("q", "past", at=now - 60)
    with q.transaction() as t:
        t.push("q", "transaction", at=now + 300)
    seen = []
    for _ in range(6):
        seen.append(list(dict.fromkeys(m.data for m in q.pop("q", batch=1000, auto_ack=True))))
        clock.advance(60)
    assert seen == [["past"], ["datetime"], ["number"], ["item"], ["delay"], ["transaction"]]


def test_a_time_is_part_of_what_a_key_stands_for(q: Session, clock: VirtualClock) -> None:
    at = clock.now() / 1_000_000 + 60
    q.push("q", 1, at=at, key="k")
    clock.advance(30)
    q.push("q", 1, at=at, key="k")
    assert q.queue_stats("q").messages == 1
    with pytest.raises(KeyConflict):
        q.push("q", 1, at=at + 1, key="k")


def test_a_time_that_cannot_be_is_refused(q: Session) -> None:
    at = datetime(2030, 1, 1)
    for bad in ({"at": at}, {"at": "tomorrow"}, {"at": 1e9, "delay": 5}):
        with pytest.raises(InvalidArgument):
            q.push("q", 1, **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="publication"):
        q.stage("p", 1, "q", Item(data=1, at=2e9))


def test_what_a_list_was_refused_raises_on_demand(q: Session, clock: VirtualClock) -> None:
    q.push("q", [1, 2, 3])
    batch = q.pop("q", batch=3, lease_seconds=10)
    assert q.ack(batch[:1]).raise_for_refused().settled == 1
    clock.advance(11)
    settled = q.ack(batch[1:])
    assert len(settled.refused) == 2
    with pytest.raises(LeaseLost, match="2 messages were refused") as refused:
        settled.raise_for_refused()
    assert refused.value.details["refused"] == [m.id for m in batch[1:]]
    with pytest.raises(type(refused.value)):
        batch[1].ack()


def test_a_page_is_used_as_a_list(q: Session) -> None:
    q.push("q", [1, 2, 3])
    page = q.browse("q", limit=2)
    assert [message.data for message in page] == [1, 2]
    assert (len(page), page[0].data, [m.data for m in page[1:]]) == (2, 1, [2])
    assert page
    assert not q.dead_letters("q")
    assert isinstance(page, Page)


def test_what_is_given_back_says_what_it_is(q: Session) -> None:
    receipt = q.push("q", [1, 2])
    assert repr(receipt) == f"<Receipt of 2 messages: {receipt[0]}, {receipt[1]}>"
    many = q.push("q", list(range(1000)))
    assert repr(many) == f"<Receipt of 1,000 messages: {', '.join(many[:3])}, ...>"
    assert repr(q.push("q", [])) == "<Receipt of 0 messages>"
    assert repr(q).startswith("<Session on ")
    assert repr(q).endswith(" as tester>")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@localhost:8000,https://user:secret@other",
        "postgresql://user:secret@host/db?password=secret&sslpassword=secret",
    ],
)
def test_what_is_shown_of_a_place_has_no_password(url: str) -> None:
    assert "secret" not in validate.redact_url(url)
    if url.startswith("http"):
        with ackflow.connect(url, token="secret", consumer="me") as q:
            assert repr(q) == (
                "<Session on http://user:***@localhost:8000,https://user:***@other as me>"
            )
