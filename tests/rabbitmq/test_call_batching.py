"""Calls that wait for the writer are one verb; what it already runs is closed to later ones."""

import asyncio
from pathlib import Path
from typing import Any

import ackflow
from ackflow.broker.aio import LoopBroker
from ackflow.broker.broker import Broker
from ackflow.dialects.rabbitmq.call_batching import Batch, CallBatcher, DelayedCalls
from ackflow.errors import QueueFull


class Batched:
    """A batcher over a real broker, whose verb doubles numbers."""

    def __init__(self, path: Path) -> None:
        self.session = ackflow.connect(path / "a.db", upkeep=False)
        assert isinstance(self.session.broker, Broker)
        self.loop_broker = LoopBroker(self.session.broker)
        self.runs: list[list[int]] = []
        self.results: list[Any] = []
        self.answered = asyncio.Event()
        self.batcher: CallBatcher[int, int] = CallBatcher(
            self.loop_broker, self._double, self.answered.set
        )

    def _double(self, _: Any, batch: Batch[int]) -> list[int]:
        numbers = batch.take()
        self.runs.append(list(numbers))
        if 13 in numbers:
            raise QueueFull("thirteen")
        return [2 * number for number in numbers]

    async def answers(self) -> list[Any]:
        await asyncio.wait_for(self.answered.wait(), 20)
        self.loop_broker.close()
        self.session.close()
        return self.results


def test_the_calls_of_a_turn_are_one_verb_and_each_gets_its_answer(tmp_path: Path) -> None:
    async def run() -> None:
        batched = Batched(tmp_path)
        begun = [batched.batcher.add(n, batched.results.append) for n in (1, 2, 3)]
        assert begun == [True, False, False]
        assert await batched.answers() == [2, 4, 6]
        assert batched.runs == [[1, 2, 3]]

    asyncio.run(run())


def test_an_error_is_the_answer_of_all_and_one_that_cannot_be_reported_hides_no_other(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        batched = Batched(tmp_path)

        def fails(_: Any) -> None:
            raise RuntimeError("the connection is gone")

        batched.batcher.add(12, fails)
        batched.batcher.add(13, batched.results.append)
        (error,) = await batched.answers()
        assert isinstance(error, QueueFull)

    asyncio.run(run())


def test_a_batch_that_is_run_again_has_the_same_items() -> None:
    batch = Batch([1])
    assert batch.join(2)
    assert batch.take() == [1, 2]
    assert not batch.join(3)
    assert (batch.take(), len(batch)) == ([1, 2], 2)


def test_delayed_calls_join_the_verb_that_waits_and_no_later_one() -> None:
    async def run() -> None:
        begun: list[Batch[int]] = []
        calls: DelayedCalls[int] = DelayedCalls(begun.append, delay=60, most=3)
        calls.add(1)
        assert not begun
        calls.flush()
        calls.add(2)
        assert [one.take() for one in begun] == [[1, 2]]
        for number in (3, 4, 5):
            calls.add(number)
        assert begun[1].take() == [3, 4, 5]
        calls.flush()
        assert len(begun) == 2

    asyncio.run(run())
