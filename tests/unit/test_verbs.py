"""Verbs of the wire: their arguments are validated in depth, and they declare what they touch."""

from array import array
from typing import Any

import pytest

from ackflow.broker.registry import VERBS
from ackflow.broker.requests import (
    BatchCommit,
    Chunk,
    DeleteOperation,
    Hold,
    Mark,
    Operation,
    Publication,
    PushOperation,
    PushRequest,
    PutOperation,
    SettleOperation,
    TransactionRequest,
    Verdict,
)
from ackflow.broker.verb import Scope
from ackflow.errors import InvalidArgument
from ackflow.options import MAX_PAYLOAD

HUGE = 1 << 64
CHUNK = Chunk("other", "p", 0, None, array("i", [1]), b"1")
BAD: list[Operation] = [
    SettleOperation(HUGE, []),
    SettleOperation(1, [Mark(Verdict("nack", delay=-1.0))]),
    SettleOperation(1, [Mark(Verdict("ack"), 1, [3, 2])]),
    PushOperation(PushRequest([Chunk("", "p", 0, None, array("i", [1]), b"1")])),
    PutOperation("", b"1"),
    PutOperation("key", b"no JSON"),
    DeleteOperation("key", -1),
]


@pytest.mark.parametrize("bad", BAD)
def test_every_operation_of_a_call_is_validated(bad: Operation) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("transact", (TransactionRequest([bad]),)),
        ("publish", ("producer", 1, [], TransactionRequest([bad]))),
        ("commit_batch", (BatchCommit("producer", 1, also=[bad]),)),
    ]
    for name, arguments in calls:
        with pytest.raises(InvalidArgument):
            VERBS[name].check(arguments)


@pytest.mark.parametrize(
    "bad",
    [
        Publication("", []), Publication("", ["a"], table={"a": 1}),
        Publication("", ["a"], b"no JSON", binary=False), Publication("", ["a"], priority=256),
        Publication("", ["a"], ttl=-1.0), Publication("", ["a"], txid=""),
        Publication("", ["a"], b"x" * (MAX_PAYLOAD + 1)),
    ],
)  # fmt: skip
def test_every_imported_message_is_validated(bad: Publication) -> None:
    VERBS["import_messages"].check(("orders", [Publication("", ["a"], b"1")], None))
    for arguments in (("orders", [bad], None), ("", [], None), ("orders", [], "")):
        with pytest.raises(InvalidArgument):
            VERBS["import_messages"].check(arguments)


@pytest.mark.parametrize("bad", [Hold(HUGE, 1, [0, 1]), Hold(1, 1, [1, 0]), Hold(1, 1, [0])])
def test_every_hold_is_validated(bad: Hold) -> None:
    for name, arguments in (
        ("commit_batch", (BatchCommit("producer", 1, holds=[bad]),)),
        ("judge", ([], [bad])),
    ):
        with pytest.raises(InvalidArgument):
            VERBS[name].check(arguments)


def test_a_call_states_the_queues_and_leases_it_touches() -> None:
    also: list[Operation] = [PushOperation(PushRequest([CHUNK])), SettleOperation(7, [])]
    scope = VERBS["commit_batch"].scope(
        (BatchCommit("p", 1, holds=[Hold(8, 1, [0, 1])], also=also),)
    )
    assert scope == Scope({"other"}, {7, 8}, producers={"p"})
    assert VERBS["settle_many"].scope(({5: [Mark(Verdict("ack"))]}, False)) == Scope(leases={5})
    assert VERBS["purge"].scope(("orders", None)).queues == {"orders"}
    assert VERBS["value"].scope(("key",)).values


def test_a_read_only_verb_can_be_repeated_and_is_not_synced() -> None:
    for verb in VERBS.values():
        assert not verb.read_only or (verb.repeatable and not verb.synced), verb.name
