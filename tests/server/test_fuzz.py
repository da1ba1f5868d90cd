"""A fuzzer over every verb: whatever is sent, no call fails with an internal error."""

import json
import random
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

import ackflow
from ackflow import VirtualClock
from ackflow.broker.registry import VERBS
from ackflow.remote import wire

from ..running import Running
from .test_callers import arguments, prepare
from .test_tenants import Victim, routes

BIG = 1 << 63
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, BIG, BIG - 1, -BIG, -BIG - 1, (1 << 64) - 1, 1 << 60, 1 << 62,
    0.5, -0.5, 1e308, 1e17, float("nan"), float("inf"), float("-inf"), "", "ack", "end", "beginning",
    "new", "all", "mine", "p", "reader", "producer", "x" * 300, "x" * 100_000, "a\0b", "\0", "\n",
    "\U0010ffff", "%", "*", "mine/../x", b"", b"\xff", b"1", b'"x"', b"\0\0\0\0", [], [[]], [0], [0, 1],
    [1, 0], [0, 0], [0, BIG - 1], [-1, 1], [None], ["a"], {}, {"a": 1}, {"": {}}, {1: []}, {BIG: 1},
    "error\0of", "x" * 1_000_000, "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    {"start": "ack"}, {"max_size": -1}, {"max_size": BIG}, {"backoff": [float("nan")]},
    {"lease_seconds": 1e300}, {"type": "PushOperation"}, [{"type": "PutOperation", "key": "", "value": b""}],
]  # fmt: skip
RAW = [
    b"", b"[", b"null", b"[true]", b"[true,[]]", b'[true,["\\ud800"]]', b'[1,["a",NaN]]', b"\xff\xfe",
    b"[true," + b"[" * 10_000, b'[true,[{"a":' * 2_000, b'[true,["a\\u0000b"]]', b"[true,[1e999]]",
]  # fmt: skip


def mutate(value: Any, random: random.Random) -> Any:
    """Replace one part of a value, chosen at random, by something hostile."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        return {**value, key: mutate(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], mutate(value[at], random), *value[at + 1 :]]
    alike = [one for one in HOSTILE if type(one) is type(value)]
    return random.choice(alike if alike and random.random() < 0.7 else HOSTILE)


def body_of(sample: Any, random: random.Random) -> tuple[bytes, str]:
    """A request body, in MessagePack or in JSON."""
    if random.random() < 0.03:
        return random.choice(RAW), random.choice([wire.JSON, wire.MSGPACK])
    given = sample
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        given = mutate(given, random)
    if random.random() < 0.7:
        try:
            return msgspec.msgpack.encode([True, given]), wire.MSGPACK
        except OverflowError:  # an integer that only JSON can have
            pass
    text = json.dumps([True, given], default=lambda value: value.decode("latin-1"))
    return text.encode(), wire.JSON


def fuzz(served: Running, http: httpx.Client, seed: int, calls: int) -> Counter[int]:
    """Send calls of all verbs in turn; return how often each status was the answer."""
    chosen = random.Random(seed)
    statuses: Counter[int] = Counter()
    names = sorted(VERBS)
    for number in range(calls):
        if number % 40 == 0:
            at = prepare(served.session)
        verb = names[number % len(names)]
        sample = msgspec.msgpack.decode(wire.write(arguments(verb, at), wire.MSGPACK))
        body, encoding = body_of(sample, chosen)
        answer = http.post(f"/v1/verbs/{verb}", content=body, headers={"content-type": encoding})
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (verb, body[:300], answer.text)
    return statuses


def fuzz_routes(served: Running, http: httpx.Client, seed: int, calls: int) -> Counter[int]:
    """Send requests of the other dialects with hostile bodies, paths and parameters."""
    chosen = random.Random(seed)
    statuses: Counter[int] = Counter()
    texts = [one for one in HOSTILE if isinstance(one, str) and len(one) < 50_000]
    for number in range(calls):
        if number % 40 == 0:
            at, owned = prepare(served.session, "evil.q", "evil-"), Victim(served, http, {})
        method, path, body = routes(at, owned.pool, chosen)
        if chosen.random() < 0.3:
            parts = path.split("/")
            parts[-1] = quote(chosen.choice(texts)[:2_000], safe="")
            path = "/".join(parts)
        if chosen.random() < 0.2:
            name = chosen.choice(["limit", "offset", "batch", "partitions", "from", "to", "status"])
            hostile = chosen.choice([*texts, "-1", "1e999", "9" * 30, "NaN", "2026-13-45"])
            path += ("&" if "?" in path else "?") + f"{name}={quote(hostile)}"
        given = mutate(body, chosen) if body is not None and chosen.random() < 0.8 else body
        text = json.dumps(given, default=lambda value: value.decode("latin-1"))
        if chosen.random() < 0.03:
            text = chosen.choice(RAW).decode("latin-1")
        answer = http.request(method, path, content=text.encode("latin-1", "replace"))
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (method, path[:300], text[:500], answer.text)
    return statuses


def test_no_request_of_a_dialect_fails_with_an_internal_error(
    served: Running, http: httpx.Client
) -> None:
    statuses = fuzz_routes(served, http, 1, 400)
    assert statuses[200] > 40
    assert statuses[400] > 40


def test_no_call_of_a_verb_fails_with_an_internal_error(
    served: Running, http: httpx.Client
) -> None:
    statuses = fuzz(served, http, 1, 600)
    assert statuses[200] > 60
    assert statuses[400] > 100


@pytest.mark.parametrize("after", [(1 << 63) - 1, -(1 << 63), -1])
def test_a_page_that_begins_nowhere_is_refused(
    http: httpx.Client, served: Running, after: int
) -> None:
    served.session.push("mine", 1)
    for verb, given in {
        "export_lanes": ["mine", after, 10],
        "export_dead": ["mine", after, 10],
        "partitions": ["mine", after, 10],
        "follow": ["mine", None, {1: after}, 10, 10],
    }.items():
        answer = http.post(
            f"/v1/verbs/{verb}",
            content=msgspec.msgpack.encode([False, given]),
            headers={"content-type": wire.MSGPACK},
        )
        assert answer.status_code == 400, (verb, answer.text)


@pytest.mark.outer
def test_no_call_of_a_verb_fails_with_an_internal_error_on_postgresql(
    postgres_url: str, clock: VirtualClock
) -> None:
    with ackflow.connect(postgres_url, clock=clock, upkeep=False) as session:
        running = Running(session)
        with httpx.Client(base_url=running.url, timeout=30) as client:
            statuses = fuzz(running, client, 2, 1_000)
            statuses += fuzz_routes(running, client, 2, 1_000)
        running.stop()
    assert statuses[200] > 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_no_call_of_many_fails_with_an_internal_error(
    served: Running, http: httpx.Client, seed: int
) -> None:
    print(fuzz(served, http, 100 + seed, 5_000), fuzz_routes(served, http, seed, 5_000))
