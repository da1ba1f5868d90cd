"""A database in many states, and what goes on with it: made by the code of an older schema, and read
by today's. Only names that every version has are used here.

Each file in the folders beside was made by the last commit at which its schema was the newest, with
the sources of that commit on PYTHONPATH:

    python older.py NUMBER URL FOLDER

The tokens it was given are in the JSON of the same name. What that code itself sees in the file and
does with it is expected.json, the same for all of them. In SQLite 2 was never the newest schema: 3
came first. For PostgreSQL the program pg_dump is looked for on PATH.
"""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import ackflow
from ackflow import Session, VirtualClock, ids

START = 1_700_000_000.0
KEY = "0123456789abcdef" * 4
READER = "reader-1"
QUEUES = ("orders", "out", "purged", "paused", "shop.mail", "secret", "spark")
TOKENS = ("done", "released", "expired", "purged", "sought", "stale", "held", "ordered", "exclusive",
          "queen")  # fmt: skip
Made = dict[str, Any]


def make(q: Session, clock: VirtualClock, schema: int) -> Made:
    """Bring an empty database into every state it can be in; answers with tokens and ids."""
    made: Made = {"schema": schema}
    q.configure("orders", lease_seconds=120, retry_limit=2, max_deliver=9, backoff=(), task="sort")
    q.push("orders", [f"a{n}" for n in range(20)], partition="a")
    q.push("orders", ["large " + "x" * 3_000, "y" * 1_000], partition="b")
    item = ackflow.Item(
        data={"n": 1.5, "é": None}, transaction_id="tx-1", headers={"trace": "7"}, partition="b"
    )
    q.push("orders", item)
    q.push("orders", b"\x00\xff", partition="b")
    q.push("orders", "urgent", partition="a", priority=0)
    q.push("orders", "patient", partition="a", priority=5)
    q.push("orders", ["delayed 1", "delayed 2"], partition="b", delay=100)
    q.push("orders", ["k1", "k2"], key="key-1")
    _settle_in_every_way(q, clock, made)
    _other_groups(q, made)
    _other_queues(q, clock, made)
    if schema >= 3:
        _readers_and_tokens(q, made)
        q.configure("secret", encrypted=True)
        q.push("secret", ["sealed", "s" * 2_000])
    if schema >= 4:
        _traces(q)
    made["stale"] = q.pop("orders", group="s", lease_seconds=1).token
    clock.advance(2)  # its lease is over, and not ended yet
    return made


def _settle_in_every_way(q: Session, clock: VirtualClock, made: Made) -> None:
    batch = q.pop("orders", group="s", batch=6, partition="a", lease_seconds=5_000)
    made["held"] = batch.token
    batch[0].ack()
    batch[1].nack("come later", delay=60)
    batch[2].nack("no good")
    batch[3].ack()
    rejected = q.pop("orders", group="s", batch=1, partition="a")
    rejected[0].nack("no good")  # it was batch[2]: the limit is two
    q.pop("orders", group="s", batch=1, partition="a")[0].reject("unwanted")
    q.pop("orders", group="s", batch=1, partition="a")[0].requeue()
    done = q.pop("orders", group="s", batch=2, partition="a")
    made["done"] = done.token
    q.ack(done, confirm=True)
    released = q.pop("orders", group="s", batch=1, partition="a")
    made["released"] = released.token
    released[0].release()
    q.pop("orders", group="s", batch=1, partition="b", auto_ack=True)
    expired = q.pop("orders", group="s", batch=1, partition="b", lease_seconds=10)
    made["expired"] = expired.token
    clock.advance(11)
    q.upkeep()
    q.delete_message("orders", q.browse("orders", partition="a").items[15].id)


def _other_groups(q: Session, made: Made) -> None:
    q.group("orders", "ordered", ordering="ordered")
    made["ordered"] = q.pop("orders", group="ordered", batch=2, partition="a").token
    q.group("orders", "exclusive", ordering="exclusive", lease_seconds=600, retry_limit=None)
    exclusive = q.pop("orders", group="exclusive", batch=3)
    made["exclusive"] = exclusive.token
    exclusive[0].ack()
    q.group("orders", "late", start="new")
    made["sought"] = q.pop("orders", group="sought", batch=3).token
    q.seek("orders", "sought", to="end", partition="a")
    q.group("orders", "stopped", max_ack_pending=5)
    q.pause("orders", "stopped")


def _other_queues(q: Session, clock: VirtualClock, made: Made) -> None:
    (moved,) = q.pop("orders", group="mover", batch=1, partition="a")
    with q.transaction() as t:
        t.ack(moved).push("out", {"moved": moved.data})
        t.put("count", 1)
    _push_once(q)
    q.push("purged", [1, 2, 3])
    made["purged"] = q.pop("purged", batch=2).token
    q.purge("purged")
    q.push("purged", 4)
    q.push("paused", ["p"])
    q.pause("paused")
    q.push("shop.mail", [ackflow.Item(data=n, transaction_id=f"mail-{n}") for n in range(4)])
    made["queen"] = q.pop("shop.mail", group="w", batch=2, dialect="queen").token
    made["stage"] = q.stage("producer", 2, "out", ["staged 1", "z" * 2_000])
    q.publish("producer", 1, [q.stage("producer", 1, "out", ["published"])])


def _push_once(q: Session) -> None:
    with q.transaction(key="transaction-1") as t:
        t.push("out", "once")


def _readers_and_tokens(q: Session, made: Made) -> None:
    from ackflow.broker import access_tokens
    from ackflow.broker.readers import verbs

    q.push("spark", [f"row {n}" for n in range(6)])
    made["epoch"] = q.broker.do(verbs.start_reader, True, READER, "spark", "query", False, 0)
    for start in (0, 1):
        request = verbs.ReaderRequest(READER, made["epoch"], start, 2, 1 << 20, 5_000.0)
        q.broker.do(verbs.lease_next, True, request)
    q.broker.do(access_tokens.create, True, "ci", [access_tokens.grant("read-write:orders*")], None)
    q.broker.do(access_tokens.create, True, "old", [access_tokens.grant("admin")], None)
    q.broker.do(access_tokens.revoke, True, "old")
    made["digests"] = [token.digest.hex() for token in q.broker.look(access_tokens.tokens)]


def _traces(q: Session) -> None:
    from ackflow.dialects.queen.verbs import traces

    def record(tx: Any) -> None:
        partition = tx._execute("select partition from txids where txid = 'tx-1'", ())[0][0]
        traces.record(tx, traces.NewTrace(partition, "tx-1", "seen", b'{"at":1}', ["day"], "s"))

    q.broker.do(record, True)


# what is there


def seen(q: Session, made: Made) -> dict[str, Any]:
    """Everything that can be looked at, in plain data; what is random is named by what it is of."""
    names = {token: name for name, token in made.items() if isinstance(token, str)}
    found: dict[str, Any] = {"queues": {}, "messages": {}, "leases": {}, "dead": {}, "why": {}}
    for queue in q.queues():
        found["queues"][queue.name] = _queue(queue)
        found["messages"][queue.name] = [
            [_place(m.id), m.partition, m.priority, str(m.due_at), _short(m.data), len(m.raw),
             _txid(m.transaction_id), m.headers]
            for m in q.browse(queue.name, limit=1_000).items
        ]  # fmt: skip
        found["leases"][queue.name] = sorted(
            [names.get(one.token, "a reader's"), one.group, one.consumer, str(one.expires_at),
             one.batch, one.acked, one.held, one.partitions]
            for one in q.leases(queue.name)
        )  # fmt: skip
        found["dead"][queue.name] = [
            [_place(d.message_id), d.group, d.kind, d.reason, d.error, d.deliveries, d.failures,
             str(d.died_at), d.data]
            for d in q.dead_letters(queue.name).items
        ]  # fmt: skip
    for message in q.browse("orders", partition="a").items[:13]:
        why = q.why("orders", message.id, group="s")
        told = [why.state, why.deliveries, why.failures, why.error, str(why.until)]
        found["why"][_place(message.id)] = told
    value = q.value("count")
    found["value"] = [value.data, value.version] if value else None
    if made["schema"] >= 4:
        found["traces"] = _traced(q)
    return found


def _traced(q: Session) -> list[Any]:
    from ackflow.dialects.queen.verbs import traces

    found, total = q.broker.look(traces.by_name, "day", 10, 0)
    return [total, [[told.trace.txid, told.trace.event, told.raw.decode()] for told in found]]


def _place(id: str) -> str:
    place = ids.parse_message_id(str(id))
    return f"{place.lane}:{place.sequence}"


def _txid(text: str) -> str:
    return _place(text) if len(text) == 36 else text  # of most messages it is an id


def _queue(queue: Any) -> dict[str, Any]:
    return {
        "paused": queue.paused,
        "options": msgspec.to_builtins(queue.options),
        "partitions": queue.partitions,
        "messages": queue.messages,
        "dead": queue.dead_letters,
        "groups": {
            group.name: [
                group.dialect, group.paused, msgspec.to_builtins(group.options),
                msgspec.to_builtins(group.settings.ordering), msgspec.to_builtins(group.counts),
                group.consumed, group.failed, group.delivered,
            ]
            for group in queue.groups
        },
    }  # fmt: skip


# what goes on


def go_on(q: Session, clock: VirtualClock, made: Made) -> dict[str, Any]:
    """Work on with the database, in every state it is in; answers with what came of it."""
    did: dict[str, Any] = {}
    did["key"] = _places(q.push("orders", ["k1", "k2"], key="key-1"))
    repeated = ackflow.Item(data="again", transaction_id="tx-1", partition="b")
    did["txid"] = _places(q.push("orders", repeated))
    did["read"] = [message.data for message in q.read(made["held"])]
    for name in TOKENS:
        did[f"ack of {name}"] = [_outcome(q.lease(made[name]).ack()) for _ in range(2)]
    _push_once(q)
    did["transaction"] = _counts(q)
    did["published"] = [q.publish("producer", batch, [made["stage"]]) for batch in (1, 2, 2)]
    if made["schema"] >= 3:
        did["reader"] = _read_on(q, made)
    did["next"] = {queue: _places(q.push(queue, f"new in {queue}")) for queue in QUEUES[:5]}
    q.resume("paused")
    q.resume("orders", "stopped")
    did["at once"] = _drain(q)
    clock.advance(70)
    did["a minute later"] = _drain(q)
    clock.advance(6_000)
    did["much later"] = _drain(q)
    did["redriven"] = [q.redrive("orders"), _drain(q)]
    q.upkeep()
    did["counts"] = _counts(q)
    return did


def _places(given: Iterable[str]) -> list[str]:
    return [_place(id) for id in given]


def _outcome(settled: Any) -> list[int]:
    return [settled.settled, settled.noop, len(settled.refused)]


def _read_on(q: Session, made: Made) -> list[Any]:
    from ackflow.broker import access_tokens
    from ackflow.broker.readers import verbs

    lots = q.broker.do(verbs.hand_over, True, READER, made["epoch"], 1, 2, 5_000.0)
    settled = q.broker.do(verbs.settle_to, True, READER, made["epoch"], 2, 5_000.0)
    request = verbs.ReaderRequest(READER, made["epoch"], 2, 2, 1 << 20, 5_000.0)
    number = q.broker.do(verbs.lease_next, True, request).number
    known = [
        [token.name, token.digest.hex() in made["digests"], token.revoked_at]
        for token in q.broker.look(access_tokens.tokens)
    ]
    return [[[lot.number, lot.ranges] for lot in lots], settled, number, known]


def _drain(q: Session) -> dict[str, list[Any]]:
    """What each group is given now, lane by lane in order, acked at once."""
    found = {}
    for queue in q.queues():
        for group in queue.groups:
            got: list[Any] = []
            while batch := q.pop(queue.name, group=group.name, batch=7):
                got += [
                    [_place(m.id), _short(m.data), m.deliveries, m.failures, m.redelivered]
                    for m in batch
                ]
                q.ack(batch)
            if got:
                lanes = sorted(got, key=lambda one: int(one[0].split(":")[0]))
                found[f"{queue.name} for {group.name}"] = lanes
    return found


def _short(data: Any) -> Any:
    return data.hex() if isinstance(data, bytes) else data[:20] if isinstance(data, str) else data


def _counts(q: Session) -> dict[str, Any]:
    return {
        f"{queue.name} for {group.name}": msgspec.to_builtins(group.counts)
        for queue in q.queues()
        for group in queue.groups
    }


def open_at(url: str, after: float = 0.0) -> tuple[Session, VirtualClock]:
    clock = VirtualClock(START + after)
    return ackflow.connect(url, clock=clock, upkeep=False, consumer="tester"), clock


def main(number: str, url: str, folder: str) -> None:
    os.environ["ACKFLOW_ENCRYPTION_KEY"] = KEY
    home = Path(folder)
    schema = int(number)
    if url.startswith("postgresql"):
        schema += 8  # the first one there has what the ninth has here
    q, clock = open_at(url)
    with q:
        made = make(q, clock, schema)
    made["after"] = clock.now() / 1e6 - START
    (home / f"{number}.json").write_text(json.dumps(made) + "\n")
    (home / f"{number}.gz").write_bytes(gzip.compress(_dump(url), 9, mtime=0))
    q, clock = open_at(url, made["after"])
    with q:
        found = {"seen": seen(q, made), "did": go_on(q, clock, made)}
    expected = home.parent / "expected.json"
    if not expected.exists():
        expected.write_text(readable(found) + "\n")
    assert json.loads(json.dumps(found)) == without(json.loads(expected.read_text()), schema)


def _dump(url: str) -> bytes:
    if not url.startswith("postgresql"):
        return Path(url).read_bytes()
    options = ("--schema=ackflow", "--inserts", "--no-owner", "--no-comments")
    text = subprocess.run(["pg_dump", *options, url], check=True, stdout=subprocess.PIPE).stdout
    keep = (line for line in text.splitlines(True) if not line.startswith((b"--", b"\\")))
    return b"".join(keep)


def readable(data: Any, depth: int = 0) -> str:
    """JSON with a line for each entry of the outer levels."""
    if depth == 3 or not isinstance(data, dict):
        return json.dumps(data)
    lines = (f"{json.dumps(key)}: {readable(value, depth + 1)}" for key, value in data.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def without(expected: Any, schema: int) -> Any:
    """What is expected of a schema that did not have everything yet."""
    came = {"secret": 3, "spark": 3, "reader": 3, "traces": 4}
    if not isinstance(expected, dict):
        return expected
    return {
        key: without(value, schema)
        for key, value in expected.items()
        if came.get(key.split(" ")[0], 0) <= schema
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
