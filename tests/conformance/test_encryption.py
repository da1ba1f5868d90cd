"""Payloads of an encrypted queue are unreadable on disk and unchanged for consumers."""

from pathlib import Path

import pytest

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.errors import NoEncryptionKey, PayloadSealed

pytestmark = pytest.mark.every_store

KEY = "00112233445566778899aabbccddeeff" * 2
OTHER = "ff" * 32
SECRET = "the launch code is 00000000"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    return monkeypatch


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def open_on(disk: Path, clock: VirtualClock | None = None) -> Session:
    return ackflow.connect(disk / "a.db", upkeep=False, clock=clock)


def test_many_messages_in_one_push_are_sealed_and_read_again(disk: Path) -> None:
    many = [{"n": n, "text": SECRET} for n in range(1000)]
    with open_on(disk) as q:
        q.configure("q", encrypted=True)
        q.push("q", many)
        assert SECRET.encode() not in on_disk(disk)
        assert [m.data for m in q.pop("q", batch=1000)] == many


def test_payloads_are_not_readable_in_the_files(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("open")
        q.push("open", SECRET[:10])
        q.configure("orders", encrypted=True)
        q.push("orders", [SECRET, SECRET])
        q.push("orders", Item(data=SECRET, transaction_id="t", headers={"h": "v"}))
        q.push("orders", SECRET.encode())
        q.publish("p", 1, [q.stage("p", 1, "orders", SECRET)])
        first, second, *_ = q.pop("orders", batch=2)
        first.requeue()
        second.reject("bad")
        with q.transaction() as t:
            t.push("orders", SECRET)
        assert SECRET[:10].encode() in on_disk(disk)
        assert SECRET.encode() not in on_disk(disk)


def test_payloads_are_read_as_they_were_pushed(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        ids = q.push("orders", [{"n": 1}, Item(data=b"\x00\xff", headers={"h": "v"})])
        (third,) = q.push("orders", Item(data=3, transaction_id="t"))
    with open_on(disk) as q:
        assert [m.data for m in q.browse("orders").items] == [{"n": 1}, b"\x00\xff", 3]
        assert [m.id for m in q.search("orders", '"n":1').items] == [ids[0]]
        assert q.message("orders", third).transaction_id == "t"
        one, two, three = q.pop("orders", batch=3)
        assert (one.data, two.data, three.data) == ({"n": 1}, b"\x00\xff", 3)
        assert (two.headers, three.transaction_id) == ({"h": "v"}, "t")
        one.reject("bad")
        two.requeue()
        three.dead_letter("worse")
    with open_on(disk) as q:
        assert [d.data for d in q.dead_letters("orders").items] == [3, {"n": 1}]
        assert [m.data for m in q.pop("orders", batch=9)] == [b"\x00\xff"]
        assert q.redrive("orders") == 2
        assert sorted(str(m.data) for m in q.pop("orders", batch=9)) == ["3", "{'n': 1}"]


def test_what_is_staged_is_encrypted_and_published_as_it_was(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        stage = q.stage("p", 1, "orders", [SECRET, Item(data=1, transaction_id="t")])
        assert SECRET.encode() not in on_disk(disk)
        assert q.publish("p", 1, [stage]) == 2
        assert [m.data for m in q.pop("orders", batch=2)] == [SECRET, 1]


def test_a_copy_sent_to_an_open_queue_is_readable_there(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", SECRET)
        q.pop("orders")[0].reject("bad")
        q.redrive("orders", to="open")
        assert [m.data for m in q.pop("open")] == [SECRET]


def test_the_option_may_be_turned_on_and_off_for_what_comes_later(disk: Path) -> None:
    with open_on(disk) as q:
        q.push("orders", "before")
        q.configure("orders", encrypted=True)
        q.push("orders", "while")
        q.configure("orders", encrypted=False)
        q.push("orders", "after")
    with open_on(disk) as q:
        assert [m.data for m in q.pop("orders", batch=3)] == ["before", "while", "after"]


def test_without_a_key_the_option_is_refused_and_nothing_is_stored(
    q: Session, key: pytest.MonkeyPatch
) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with pytest.raises(NoEncryptionKey, match="ACKFLOW_ENCRYPTION_KEY to 64 hexadecimal digits"):
        q.configure("orders", encrypted=True)
    assert q.queues() == []


@pytest.mark.parametrize("bad", ["", "abc", "g" * 64, "0" * 63, "0" * 65])
def test_an_invalid_key_is_refused(q: Session, key: pytest.MonkeyPatch, bad: str) -> None:
    key.setenv("ACKFLOW_ENCRYPTION_KEY", bad)
    with pytest.raises(NoEncryptionKey, match="64 hexadecimal digits"):
        q.configure("orders", encrypted=True)


def test_queens_name_of_the_key_is_known_too(q: Session, key: pytest.MonkeyPatch) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    key.setenv("QUEEN_ENCRYPTION_KEY", OTHER)
    assert q.configure("orders", encrypted=True).encrypted
    q.push("orders", 1)
    assert [m.data for m in q.pop("orders")] == [1]


@pytest.mark.parametrize("given", [None, OTHER])
def test_without_its_key_a_message_is_neither_handed_out_nor_lost(
    disk: Path, key: pytest.MonkeyPatch, given: str | None
) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", [1, 2])
        q.group("orders", "g")
        q.push("open", 3)
    key.setenv("ACKFLOW_ENCRYPTION_KEY", given) if given else key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with open_on(disk) as q:
        with pytest.raises(PayloadSealed, match="is encrypted"):
            q.pop("orders", group="g", batch=2)
        with pytest.raises(PayloadSealed):
            q.browse("orders")
        if given is None:
            with pytest.raises(PayloadSealed):
                q.push("orders", 4)
        assert q.queue_stats("orders").messages == 2
        assert q.group_stats("orders", "g").counts.ready == 2
        assert [m.data for m in q.pop("open")] == [3]
    key.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    with open_on(disk) as q:
        assert [m.data for m in q.pop("orders", group="g", batch=2)] == [1, 2]


def test_upkeep_goes_on_without_the_key(
    disk: Path, clock: VirtualClock, key: pytest.MonkeyPatch
) -> None:
    with open_on(disk, clock) as q:
        q.configure("orders", encrypted=True, max_deliver=1, max_wait_seconds=400)
        q.push("orders", [1, 2])
        q.pop("orders", lease_seconds=10)
        q.push("open", 3)
        q.pop("open", lease_seconds=10)
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with open_on(disk, clock) as q:
        clock.advance(500)
        assert q.upkeep().leases_expired == 1
        assert q.group_stats("open").counts.ready == 1
    key.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    with open_on(disk, clock) as q:
        assert q.upkeep().leases_expired == 1
        assert sorted(d.kind for d in q.dead_letters("orders").items) == ["max_deliver", "max_wait"]


def test_an_older_key_still_opens_what_it_sealed(disk: Path, key: pytest.MonkeyPatch) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", "old")
    key.setenv("ACKFLOW_ENCRYPTION_KEY", f"{OTHER}, {KEY}")
    with open_on(disk) as q:
        q.push("orders", "new")
    key.setenv("ACKFLOW_ENCRYPTION_KEY", OTHER)
    with open_on(disk) as q:
        q.purge("orders")
        q.push("orders", "newer")
        assert [m.data for m in q.pop("orders")] == ["newer"]


def test_what_is_the_same_does_not_look_the_same(disk: Path) -> None:
    with open_on(disk) as q:
        q.configure("orders", encrypted=True)
        q.push("orders", SECRET)
        q.push("orders", SECRET)
        rows = q.broker.look(lambda tx: tx._execute("select data from segments", ()))
        assert len({bytes(row[0]) for row in rows}) == 2
