"""A fuzzer over every verb: whatever is sent, no call fails with an internal error."""

import json
import random
from collections import Counter
from typing import Any

import httpx
import msgspec
import pytest

from ackflow.broker.registry import VERBS
from ackflow.remote import wire

from ..running import Running
from .test_callers import arguments, prepare

BIG = 1 << 63
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, BIG, BIG - 1, -BIG, -BIG - 1, (1 << 64) - 1, 1 << 60, 1 << 62,
    0.5, -0.5, 1e308, 1e17, float("nan"), float("inf"), float("-inf"), "", "ack", "end", "beginning",
    "new", "all", "mine", "p", "reader", "producer", "x" * 300, "x" * 100_000, "a\0b", "\0", "\n",
    "\U0010ffff", "%", "*", "mine/../x", b"", b"\xff", b"1", b'"x"', b"\0\0\0\0", [], [[]], [0], [0, 1],
    [1, 0], [0, 0], [0, BIG - 1], [-1, 1], [None], ["a"], {}, {"a": 1}, {"": {}}, {1: []}, {BIG: 1},
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


def test_no_call_of_a_verb_fails_with_an_internal_error(
    served: Running, http: httpx.Client
) -> None:
    statuses = fuzz(served, http, 1, 600)
    assert statuses[200] > 60
    assert statuses[400] > 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_no_call_of_many_fails_with_an_internal_error(
    served: Running, http: httpx.Client, seed: int
) -> None:
    fuzz(served, http, 100 + seed, 5_000)
