"""The examples for those who come from Queen, by the headings of its documentation."""

import asyncio
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import ackflow
from ackflow import VirtualClock

from ..running import Running

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = ("queen_acks", "queen_dead_letters", "queen_speed_and_errors", "queen_patterns")
ASYNC = "queen_async"

# Everything Queen's documentation of acknowledgement shows in JavaScript, in its order.
HEADINGS = [
    "Manual ACK (Default)",
    "Auto-ACK",
    "Callback-based ACK",
    "Required Parameters",
    "Batch ACK",
    "Lease Renewal",
    "Queue Mode (Default)",
    "Named Consumer Groups",
    "Max retries exceeded",
    "Max wait time exceeded",
    "Monitor DLQ regularly",
    "Investigate and fix root causes",
    "Reprocess when appropriate",
    "Use batch ACK for high throughput",
    "Include lease ID to skip validation query",
    "Use auto-ACK for non-critical messages",
    "Invalid Lease",
    "Missing partitionId",
    "Message Not Found",
    "Exponential Backoff",
    "Circuit Breaker",
    "Transactional ACK + PUSH",
    "Conditional ACK",
    "Delayed NACK (Manual Retry)",
    "ACK Metrics",
]

Example = Callable[..., Any]
Proof = Callable[..., Any]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(module: ModuleType) -> dict[str, Example]:
    """The examples of a file by their headings."""
    found = [part for part in vars(module).values() if isinstance(part, FunctionType)]
    mine = [part for part in found if part.__module__ == module.__name__ and part.__doc__]
    return {inspect.getdoc(part) or "": part for part in mine}


LOADED = {name: load(name) for name in (*FILES, ASYNC)}


def proves(heading: str, proofs: dict[str, Proof]) -> Callable[[Proof], Proof]:
    """Keep a function as the proof of an example."""

    def keep(proof: Proof) -> Proof:
        proofs[heading] = proof
        return proof

    return keep


@pytest.fixture(params=["file", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[str]:
    """A file, and a server on a file."""
    path = str(tmp_path / "queen.db")
    if request.param == "file":
        yield path
        return
    running = Running(ackflow.connect(path, clock=clock, upkeep=False))
    yield running.url
    running.stop()
    running.session.close()


class Work:
    """A handler that remembers its messages, and fails on the chosen ones."""

    def __init__(self, fails_on: Any = ()) -> None:
        self.seen: list[Any] = []
        self._fails_on = fails_on

    def __call__(self, data: Any) -> None:
        self.seen.append(data)
        if data in self._fails_on:
            raise ValueError(f"Invalid: {data}")

    async def awaited(self, data: Any) -> None:
        await asyncio.sleep(0)
        self(data)


def data(messages: Any) -> list[Any]:
    return [message.data for message in messages]
