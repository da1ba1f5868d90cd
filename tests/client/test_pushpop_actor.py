"""The PushPopActor answers as its specification shows, texts included, on files and servers."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock, aio
from ackflow.errors import InvalidArgument, SessionClosed
from ackflow.options import QUEUE_MODE
from ackflow.pushpop import (
    AcknowledgeRequest,
    AcknowledgeResponse,
    PopResponse,
    PopWithAckRequest,
    PopWithAckResponse,
    PushPopActor,
    PushRequest,
    PushResponse,
)

from .conftest import Run

START = 1_700_000_000.0  # where the clock of a test begins
LOCKED = "Queue is locked by another operation"


async def pushed(q: aio.Session, *items: Any, queue: str = "jobs") -> PushPopActor:
    """An actor with some items at priority 0."""
    actor = PushPopActor(q, queue)
    for item in items:
        assert (await actor.Push({"item": item}))["success"]
    return actor


# pushing


def test_a_push_says_where_the_item_went(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "my-queue")
        item = {"task_id": 123, "action": "send_email"}
        assert await actor.Push({"item": item}) == {
            "success": True, "message": "Item pushed to queue my-queue at priority 0"
        }  # fmt: skip
        assert await actor.Push(PushRequest('{"id": 1}', 7)) == PushResponse(
            True, "Item pushed to queue my-queue at priority 7"
        )

    run(test)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"item": 1, "priority": -1}, "Priority must be non-negative"),
        (
            {"item": 1, "priority": 2**31},
            "priority must be an integer from 0 to 2147483647, got 2147483648",
        ),
        (
            {"item": 1, "priority": "high"},
            "priority must be an integer from 0 to 2147483647, got 'high'",
        ),
        ({}, "item is required and must not be null"),
        ({"item": None}, "item is required and must not be null"),
        ({"item": float("nan")}, "the data of a message must be JSON, which has no nan"),
        (PushRequest("1", -1), "Priority must be non-negative"),
        (PushRequest(" null "), "item is required and must not be null"),
        (PushRequest(""), "item is required and must not be null"),
        (PushRequest("{bad"), "the data of a message must be JSON or bytes: "),
        (PushRequest('"\ud800"'), "the item is not UTF-8: "),
    ],
)
def test_what_cannot_be_pushed_is_answered_and_nothing_is_pushed(
    run: Run, request_: Any, said: str
) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        answer = await actor.Push(request_)
        if isinstance(answer, PushResponse):
            answer = {"success": answer.Success, "message": answer.Message}
        assert answer["success"] is False
        assert answer["message"].startswith(said)
        assert (await actor.Pop()).Count == 0

    run(test)


def test_an_item_comes_back_byte_for_byte_as_its_text_was(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor, text = PushPopActor(q, "jobs"), '{ "b":1.50,  "a":[ 1,2 ], "ä":"\\u00e4" }'
        await actor.Push(PushRequest(text))
        assert (await actor.Pop()).ItemsJson == [text]

    run(test)


@pytest.mark.parametrize("item", [[1, 2, 3], [], {}, "text", 0, False, {"deep": [None]}])
def test_any_json_value_but_null_is_one_item(run: Run, item: Any) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, item)
        answer = await actor.PopWithAck({})
        assert (answer["items"], answer["count"]) == ([item], 1)

    run(test)


# popping


def test_a_plain_pop_removes_its_item_at_once_and_makes_no_lock(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, {"id": 1}, {"id": 2})
        assert await actor.Pop() == PopResponse(['{"id":1}'], 1)
        assert await actor.Pop() == PopResponse(['{"id":2}'], 1)
        assert await actor.Pop() == PopResponse([], 0)
        assert await actor.Acknowledge({"lock_id": "abc123def45"}) == {
            "success": False, "message": "No active lock found", "error_code": "LOCK_NOT_FOUND"
        }  # fmt: skip

    run(test)


def test_items_come_by_priority_and_then_in_the_order_of_their_push(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        for item, priority in [("c", 5), ("a", 0), ("d", 5), ("b", 1)]:
            await actor.Push({"item": item, "priority": priority})
        assert [(await actor.Pop()).ItemsJson for _ in range(4)] == [
            ['"a"'], ['"b"'], ['"c"'], ['"d"']
        ]  # fmt: skip

    run(test)


def test_a_pop_with_acknowledgement_answers_with_its_lock(run: Run, clock: VirtualClock) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        for text in ('{"id": 1}', '{"id": 2}'):
            await actor.Push(PushRequest(text))
        result = await actor.PopWithAck(PopWithAckRequest(TtlSeconds=60, Count=2))
        assert result == PopWithAckResponse(
            ItemsJson=['{"id": 1}', '{"id": 2}'],
            Count=2,
            Locked=True,
            LockId=result.LockId,
            LockExpiresAt=START + 60,
        )
        assert len(result.LockId) == 11

    run(test)


def test_a_dictionary_is_answered_with_a_dictionary(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, {"id": 1})
        answer = await actor.PopWithAck({"ttl_seconds": 60})
        assert answer == {
            "items": [{"id": 1}],
            "count": 1,
            "locked": True,
            "lock_id": answer["lock_id"],
            "lock_expires_at": START + 60,
        }

    run(test)


def test_without_a_request_the_lock_lasts_thirty_seconds_and_holds_one_item(
    run: Run,
) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1, 2)
        result = await actor.PopWithAck()
        assert (result.ItemsJson, result.LockExpiresAt) == (["1"], START + 30)

    run(test)


def test_without_a_time_the_lock_lasts_as_long_as_the_lease_of_the_group(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        await q.group("jobs", QUEUE_MODE, dialect="pushpop", lease_seconds=120)
        actor = await pushed(q, 1, 2, 3)
        for asked in (None, {}, PopWithAckRequest()):
            answer = await actor.PopWithAck(asked)
            found = answer if isinstance(answer, dict) else _words(answer)
            assert found["lock_expires_at"] == START + 120
            await actor.Acknowledge({"lock_id": found["lock_id"]})

    run(test)


def _words(answer: PopWithAckResponse) -> dict[str, Any]:
    return {"lock_expires_at": answer.LockExpiresAt, "lock_id": answer.LockId}


@pytest.mark.parametrize("plain", [False, True])
def test_a_pop_that_is_cancelled_leaves_no_lock(run: Run, plain: bool) -> None:
    async def test(q: aio.Session) -> None:
        await pushed(q, 1)
        await q.group("jobs", QUEUE_MODE, dialect="pushpop")
        actor = PushPopActor(q.sync if plain else q, "jobs")
        for n in range(10):
            task = asyncio.create_task(actor.PopWithAck())
            await asyncio.sleep(0)
            for _ in range(1 + n % 3):
                task.cancel()
                await asyncio.sleep(0)
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for _ in range(1000):
                if task.cancelled() and not (await q.group_stats("jobs")).counts.leased:
                    break
                await asyncio.sleep(0.005)
            else:
                raise AssertionError("its lock is still there")

    run(test)


@pytest.mark.parametrize(
    ("asked", "given"),
    [(1, 1), (300, 300), (0, 1), (-5, 1), (301, 300), (10**30, 300), (None, 30)],
)
def test_the_time_of_a_lock_is_clamped_to_one_to_three_hundred_seconds(
    run: Run, asked: int | None, given: int
) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        answer = await actor.PopWithAck({"ttl_seconds": asked})
        assert answer["lock_expires_at"] == START + given

    run(test)


@pytest.mark.parametrize(
    "request_", [{"ttl_seconds": "5"}, {"ttl_seconds": 1.5}, {"count": 0}, {"count": 101}]
)
def test_an_invalid_number_is_refused_in_a_short_sentence(
    run: Run, request_: dict[str, Any]
) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        with pytest.raises(InvalidArgument) as refused:
            await actor.PopWithAck(request_)
        assert len(str(refused.value)) < 80
        assert (await actor.Pop()).Count == 1

    run(test)


# acknowledging


def test_an_acknowledgement_says_how_many_items_it_was_for(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1, 2)
        result = await actor.PopWithAck(PopWithAckRequest(Count=2))
        acknowledged = await actor.Acknowledge(AcknowledgeRequest(result.LockId))
        assert acknowledged == AcknowledgeResponse(True, "Successfully acknowledged 2 item(s)", 2)
        assert (await actor.PopWithAck()).Count == 0

    run(test)


def test_the_basic_flow_in_dictionaries(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, {"task_id": 123, "action": "send_email"}, queue="my-queue")
        popped = await actor.PopWithAck({})
        assert popped["items"] == [{"task_id": 123, "action": "send_email"}]
        assert await actor.Acknowledge({"lock_id": popped["lock_id"]}) == {
            "success": True,
            "message": "Successfully acknowledged 1 item(s)",
            "items_acknowledged": 1,
        }

    run(test)


def test_the_same_acknowledgement_again_answers_the_same(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        lock = {"lock_id": (await actor.PopWithAck({}))["lock_id"]}
        assert await actor.Acknowledge(lock) == await actor.Acknowledge(lock)

    run(test)


@pytest.mark.parametrize("request_", [{}, {"lock_id": ""}, {"lock_id": None}, {"lock_id": 5}])
def test_a_lock_id_is_required(run: Run, request_: dict[str, Any]) -> None:
    async def test(q: aio.Session) -> None:
        answer = await PushPopActor(q, "jobs").Acknowledge(request_)
        assert (answer["success"], answer["message"]) == (False, "lock_id is required")
        response = await PushPopActor(q, "jobs").Acknowledge(AcknowledgeRequest(""))
        assert (response.Success, response.Message) == (False, "lock_id is required")

    run(test)


def test_a_lock_that_another_verb_ended_is_answered_and_not_raised(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        lock_id = (await actor.PopWithAck()).LockId
        await q.lease(lock_id).release()
        answer = await actor.Acknowledge({"lock_id": lock_id})
        assert (answer["success"], answer["error_code"]) == (False, "already_settled")

    run(test)


# the edge cases, as they are numbered


def test_1_a_pop_while_locked_brings_nothing_and_says_until_when(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1, 2)
        await actor.PopWithAck()
        assert await actor.PopWithAck(PopWithAckRequest()) == PopWithAckResponse(
            [], 0, True, None, START + 30, LOCKED
        )
        assert await actor.PopWithAck({}) == {
            "items": [], "count": 0, "locked": True, "lock_expires_at": START + 30,
            "message": LOCKED,
        }  # fmt: skip
        assert await actor.Pop() == PopResponse([], 0, True, START + 30, LOCKED)

    run(test)


def test_1_a_push_is_not_held_up_by_a_lock(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        lock_id = (await actor.PopWithAck()).LockId
        assert (await actor.Push({"item": 2}))["success"]
        await actor.Acknowledge({"lock_id": lock_id})
        assert (await actor.Pop()).ItemsJson == ["2"]

    run(test)


@pytest.mark.parametrize("popped_between", [False, True])
def test_2_a_late_acknowledgement_is_told_and_loses_nothing(
    run: Run, clock: VirtualClock, popped_between: bool
) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, {"id": 1}, {"id": 2})
        lock_id = (await actor.PopWithAck({"ttl_seconds": 5}))["lock_id"]
        clock.advance(6)
        if popped_between:
            assert (await actor.PopWithAck()).ItemsJson == ['{"id":1}']
        assert await actor.Acknowledge(AcknowledgeRequest(lock_id)) == AcknowledgeResponse(
            False, "Lock has expired", None, "LOCK_EXPIRED"
        )
        assert await actor.Acknowledge({"lock_id": lock_id}) == {
            "success": False, "message": "Lock has expired", "error_code": "LOCK_EXPIRED"
        }  # fmt: skip
        if not popped_between:
            assert (await actor.PopWithAck()).ItemsJson == ['{"id":1}']

    run(test)


@pytest.mark.parametrize("wrong", ["xyz789", "abc123def45", "not a lock id at all"])
def test_3_a_wrong_lock_id_is_refused_and_the_lock_stays(run: Run, wrong: str) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1)
        lock_id = (await actor.PopWithAck()).LockId
        answer = await actor.Acknowledge({"lock_id": wrong})
        assert (answer["success"], answer["message"]) == (False, "Invalid lock_id")
        assert (await actor.PopWithAck()).Message == LOCKED
        assert (await actor.Acknowledge({"lock_id": lock_id}))["success"]

    run(test)


def test_4_an_empty_queue_is_not_locked(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        assert await actor.PopWithAck({}) == {"items": [], "count": 0, "locked": False}
        assert await actor.PopWithAck() == PopWithAckResponse([], 0, False)
        assert (await actor.Acknowledge({"lock_id": "abc123def45"}))["message"] == (
            "No active lock found"
        )

    run(test)


def test_5_what_ran_out_is_back_in_its_own_priority_before_the_others(
    run: Run, clock: VirtualClock
) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        for item, priority in [("urgent", 0), ("first", 1), ("second", 1)]:
            await actor.Push({"item": item, "priority": priority})
        held = await actor.PopWithAck({"ttl_seconds": 5, "count": 2})
        assert held["items"] == ["urgent", "first"]
        await actor.Push({"item": "later", "priority": 0})
        clock.advance(5)  # the moment it ends it is over
        found = [(await actor.Pop()).ItemsJson[0] for _ in range(4)]
        assert found == ['"urgent"', '"later"', '"first"', '"second"']

    run(test)


def test_6_a_lock_outlives_its_actor_and_its_session(tmp_path: Path, clock: VirtualClock) -> None:
    async def lock() -> str:
        async with await aio.connect(tmp_path / "jobs.db", clock=clock, upkeep=False) as q:
            actor = await pushed(q, 1)
            return str((await actor.PopWithAck()).LockId)

    async def go_on(lock_id: str) -> None:
        async with await aio.connect(tmp_path / "jobs.db", clock=clock, upkeep=False) as q:
            actor = PushPopActor(q, "jobs")
            assert (await actor.PopWithAck()).Message == LOCKED
            assert (await actor.Acknowledge({"lock_id": lock_id}))["items_acknowledged"] == 1

    asyncio.run(go_on(asyncio.run(lock())))


def test_7_all_items_of_a_lock_are_acknowledged_or_come_back_together(
    run: Run, clock: VirtualClock
) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, *range(5))
        assert (await actor.PopWithAck({"count": 3, "ttl_seconds": 5}))["items"] == [0, 1, 2]
        clock.advance(6)
        again = await actor.PopWithAck({"count": 4})
        assert again["items"] == [0, 1, 2, 3]
        assert (await actor.Acknowledge(again))["items_acknowledged"] == 4
        assert (await actor.PopWithAck({"count": 5}))["items"] == [4]

    run(test)


# around it


def test_queues_have_locks_of_their_own(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        one, other = await pushed(q, 1, queue="one"), await pushed(q, 2, queue="other")
        lock_id = (await one.PopWithAck()).LockId
        assert (await other.Acknowledge({"lock_id": lock_id}))["message"] == "No active lock found"
        assert (await other.PopWithAck()).Count == 1
        assert (await one.Acknowledge({"lock_id": lock_id}))["success"]

    run(test)


def test_of_many_at_once_one_gets_the_lock(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = await pushed(q, 1, 2, 3)
        answers = await asyncio.gather(*(actor.PopWithAck() for _ in range(8)))
        assert sorted(answer.Count for answer in answers) == [0] * 7 + [1]
        assert all(answer.Locked for answer in answers)
        assert sum(answer.LockId is not None for answer in answers) == 1

    run(test)


def test_a_plain_session_works_as_well(tmp_path: Path, clock: VirtualClock) -> None:
    async def test(q: ackflow.Session) -> None:
        actor = PushPopActor(q, "jobs")
        assert (await actor.Push({"item": 1}))["success"]
        popped = await actor.PopWithAck({})
        assert (await actor.Acknowledge(popped))["items_acknowledged"] == 1

    with ackflow.connect(tmp_path / "jobs.db", clock=clock, upkeep=False) as q:
        asyncio.run(test(q))


def test_what_goes_wrong_underneath_is_raised_and_not_answered(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        actor = PushPopActor(q, "jobs")
        await q.close()
        for call in (
            actor.Push({"item": 1}),
            actor.Pop(),
            actor.Acknowledge({"lock_id": "x" * 11}),
        ):
            with pytest.raises(SessionClosed):
                await call

    run(test)


def test_a_queue_needs_a_name(run: Run) -> None:
    async def test(q: aio.Session) -> None:
        with pytest.raises(InvalidArgument):
            PushPopActor(q, "")

    run(test)
