"""Key rotation: everything is encrypted again with the new key, whatever happens meanwhile."""

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_encryption import KEY, OTHER, SECRET, execute
from test_encryption import key as key  # the fixture that sets KEY
from test_encryption import stored as stored

import ackflow
from ackflow import Item, Session
from ackflow.broker import key_rotation
from ackflow.broker.key_rotation import Rotated, Rotation, key_usage
from ackflow.dialects.queen.verbs import streams, traces
from ackflow.errors import NoEncryptionKey
from ackflow.store import encryption

pytestmark = pytest.mark.every_store
THIRD = "ab" * 32


def id_of(key: str) -> str:
    return encryption._read("test", key).first.hex()


def give(key: pytest.MonkeyPatch, *keys: str) -> None:
    key.setenv("ACKFLOW_ENCRYPTION_KEY", ",".join(keys))


def fill(q: Session, name: str = "orders") -> None:
    """Something encrypted in every table that can hold it."""
    q.configure(name, encrypted=True)
    q.push(name, SECRET)
    q.push(name, [{"n": n, "text": SECRET * 40} for n in range(300)])
    q.push(name, Item(data=SECRET, transaction_id="t", headers={"h": "v"}))
    q.publish("p", 1, [q.stage("p", 1, name, SECRET * 500)])
    q.stage("p", 2, name, SECRET)
    dead, failed, copied = q.pop(name, batch=3)
    dead.reject(SECRET)
    failed.nack(SECRET, delay=60)
    copied.nack(SECRET, delay=0)
    (again,) = q.pop(name)
    again.requeue()
    place = execute(q, "select id from partitions")[-1][0]
    new = traces.NewTrace(place, "t", "info", msgspec.json.encode(SECRET), ["name"])
    q.broker.do(traces.record, True, new)
    query = streams.Query("", "h", name)
    found = q.broker.do(streams.register, True, f"{name}-query", query, False).query
    state = streams.Cycle(found.id, place, [("k", msgspec.json.encode(SECRET))])
    q.broker.do(streams.cycle, True, state)


def everything(q: Session, name: str = "orders") -> Any:
    """Everything that is readable, to compare it before and after."""
    q.broker.store._cache.clear()
    letters = [(one.data, one.reason, one.error) for one in q.dead_letters(name)]
    return (
        [(m.data, m.headers) for m in q.browse(name, limit=1000).items], letters,
        q.broker.look(traces.by_name, "name", 10, 0)[0][0].trace.data,
    )  # fmt: skip


def test_every_table_is_encrypted_again_and_the_old_key_is_not_needed(
    stored: Session, key: pytest.MonkeyPatch
) -> None:
    fill(stored)
    before, rows = everything(stored), key_usage(stored.broker)
    assert set(rows) == {id_of(KEY)}
    assert all(occurrences(stored, KEY).values())
    give(key, OTHER, KEY)
    done = Rotation(stored.broker).run()
    assert done.complete
    assert done.resealed > 6
    assert key_usage(stored.broker) == {id_of(OTHER): rows[id_of(KEY)]}
    assert not any(occurrences(stored, KEY).values())
    give(key, OTHER)
    assert everything(stored) == before
    (staged,) = {row[0] for row in execute(stored, "select stage from stages")}
    stored.publish("p", 2, [staged])
    popped = stored.pop("orders", group="other", batch=1000)
    assert popped[-1].data == SECRET
    assert SECRET in str(stored.why("orders", popped[1].id))
    again = Rotation(stored.broker).run()
    assert (again.complete, again.resealed) == (True, 0)


def test_every_table_that_is_walked_has_sealed_rows(stored: Session) -> None:
    """The test fills all tables that the rotation walks."""
    fill(stored)
    tables = {table.name: 0 for table in key_rotation.TABLES}
    for table in key_rotation.TABLES:
        rows = stored.broker.look(table.page, table.start, 1000)
        tables[table.name] = sum(bool(row.keys) for row in rows)
    assert all(tables.values()), tables


def occurrences(q: Session, key: str) -> Counter[str]:
    """Where the id of a key begins a ciphertext, found in the raw columns of all tables."""
    raw = bytes.fromhex(id_of(key))
    text = b"\x01" + base64.b64encode(raw)[:5]
    found: Counter[str] = Counter()
    for table in ("segments", "bodies", "dead", "claim_rows", "traces", "kv"):
        for row in execute(q, f"select * from {table}"):
            values = [one.encode() if isinstance(one, str) else one for one in row]
            some = [bytes(one) for one in values if isinstance(one, bytes | memoryview)]
            found[table] += sum(raw in one[:5] or text in one for one in some)
    return found


def test_bodies_of_older_versions_are_bound_to_their_place(
    stored: Session, key: pytest.MonkeyPatch
) -> None:
    stored.configure("orders", encrypted=True)
    stored.push("orders", SECRET)
    cipher = encryption._read("test", KEY).ciphers[bytes.fromhex(id_of(KEY))]
    loose = bytes.fromhex(id_of(KEY)) + b"n" * 12 + cipher.encrypt(b"n" * 12, b'"old"', None)
    rest = msgspec.msgpack.encode({"sealed": True})
    ends = len(b'"old"').to_bytes(4, sys.byteorder)
    execute(stored, "update segments set ends = ?1, data = ?2, rest = ?3", ends, loose, rest)
    assert key_usage(stored.broker) == {"": 1}
    done = Rotation(stored.broker).run()  # the key stays the same
    assert (done.resealed, done.complete) == (1, True)
    assert key_usage(stored.broker) == {id_of(KEY): 1}
    assert [m.data for m in stored.pop("orders")] == ["old"]


def test_a_row_that_no_key_opens_is_reported_and_left_as_it_is(
    stored: Session, key: pytest.MonkeyPatch
) -> None:
    stored.configure("orders", encrypted=True)
    stored.push("orders", 1)
    give(key, OTHER)
    stored.push("orders", 2)
    give(key, THIRD, OTHER)
    done = Rotation(stored.broker).run()
    assert not done.complete
    assert (done.resealed, done.unreadable) == (1, {id_of(KEY): 1})
    give(key, THIRD, KEY)
    assert Rotation(stored.broker).run().complete
    give(key, THIRD)
    assert [m.data for m in stored.pop("orders", batch=2)] == [1, 2]


def test_without_a_key_nothing_is_done(stored: Session, key: pytest.MonkeyPatch) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    with pytest.raises(NoEncryptionKey):
        Rotation(stored.broker)


class Stop(Exception):
    pass


def test_a_rotation_that_was_stopped_continues_where_it_was(
    stored: Session, key: pytest.MonkeyPatch
) -> None:
    key.setattr(key_rotation, "PAGE", 20)
    key.setattr(key_rotation, "SLICE_SECONDS", 0.0)  # one row in each slice
    stored.configure("orders", encrypted=True)
    for n in range(100):
        stored.push("orders", n)
    give(key, OTHER, KEY)

    def stop(state: Rotated) -> None:
        if state.resealed == 50:
            raise Stop

    with pytest.raises(Stop):
        Rotation(stored.broker, stop).run()
    assert key_usage(stored.broker) == {id_of(KEY): 50, id_of(OTHER): 50}
    assert [m.data for m in stored.pop("orders", group="g", batch=100)] == list(range(100))
    looked: list[int] = []
    rotation = Rotation(stored.broker, lambda state: looked.append(state.looked))
    done = rotation.run()
    assert (done.resumed, done.resealed, done.complete) == (True, 50, True)
    assert looked[0] == 0
    assert max(looked[: looked.index(50) + 1]) == 50  # the first pass began at the middle
    assert not Rotation(stored.broker).run().resumed


def test_a_session_that_still_uses_the_old_key_prevents_the_end(
    stored: Session, key: pytest.MonkeyPatch
) -> None:
    stored.configure("orders", encrypted=True)
    stored.push("orders", 0)
    give(key, OTHER, KEY)

    def push_with_the_old_key(state: Rotated) -> None:
        give(key, KEY)
        stored.push("orders", state.number)
        give(key, OTHER, KEY)

    done = Rotation(stored.broker, push_with_the_old_key).run()
    assert not done.complete
    assert done.number == key_rotation.MAX_PASSES
    assert Rotation(stored.broker).run().complete


def test_pushes_and_pops_go_on_during_a_rotation(tmp_path: Path, key: pytest.MonkeyPatch) -> None:
    """Every message is delivered once and whole, and no call fails."""
    key.setattr(key_rotation, "PAGE", 50)
    path = str(tmp_path / "busy.db")
    with ackflow.connect(path) as q, ackflow.connect(path) as other:
        q.configure("orders", encrypted=True)
        for n in range(500):
            q.push("orders", {"n": n, "text": SECRET})
        give(key, OTHER, KEY)
        stop, got, errors = threading.Event(), list[int](), list[BaseException]()

        def consume() -> None:
            try:
                n = 500
                while not stop.is_set():
                    other.push("orders", {"n": n, "text": SECRET})
                    n += 1
                    batch = other.pop("orders", batch=3)
                    got.extend(m.data["n"] for m in batch)
                    for message in batch:
                        message.ack()
                while batch := other.pop("orders", batch=100, auto_ack=True):
                    got.extend(m.data["n"] for m in batch)
                assert sorted(got) == list(range(n))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        done = Rotation(q.broker).run()
        stop.set()
        thread.join()
        assert errors == []
        assert done.complete
        assert set(key_usage(q.broker)) == {id_of(OTHER)}


def test_a_rotation_that_is_killed_loses_nothing(tmp_path: Path, key: pytest.MonkeyPatch) -> None:
    path, bodies = str(tmp_path / "killed.db"), [f"{n} {SECRET * 500}" for n in range(400)]
    with ackflow.connect(path) as q:
        q.configure("orders", encrypted=True)
        for body in bodies:
            q.push("orders", body)
    command = [sys.executable, "-m", "ackflow", "keys", "rotate", "--db", path]
    env = {**os.environ, "ACKFLOW_ENCRYPTION_KEY": f"{OTHER},{KEY}"}
    give(key, OTHER, KEY)
    with ackflow.connect(path, upkeep=False) as q:
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as killed:
            deadline = time.monotonic() + 60
            while not key_usage(q.broker)[id_of(OTHER)]:
                assert time.monotonic() < deadline
            killed.send_signal(signal.SIGKILL)
        assert [m.data for m in q.browse("orders", limit=1000).items] == bodies
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert f"no longer needed: {id_of(KEY)}" in ended.stdout
    give(key, OTHER)
    with ackflow.connect(path, upkeep=False) as q:
        assert [m.data for m in q.pop("orders", batch=1000)] == bodies
