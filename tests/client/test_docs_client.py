"""Every block of the page on the client runs as it is written, and what the README shows of it."""

import ast
import asyncio
import inspect
import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ackflow
from ackflow import Message, Session, aio

from ..running import Running

DOCS = Path(__file__).parents[2] / "docs"
IDLE = 0.3  # seconds without a message after which a loop of an example is stopped


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python of a page, each block with the name of its place."""
    text = page.read_text()
    return [
        (f"{page.stem} line {text.count(chr(10), 0, found.start()) + 1}", found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


PAGE = blocks(DOCS / "client.md")
README = [(at, code) for at, code in blocks(DOCS.parent / "README.md") if ".consume(" in code]
STARTED: list[Any] = []  # the loops of the example that runs, plain and awaitable ones


class Stopper:
    """Stops the loops that an example waits for, once they have nothing to do any more."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        seen: dict[int, tuple[int, float]] = {}
        while not self._over.wait(0.01):
            for consumer in list(STARTED):
                received, since = seen.get(id(consumer), (0, time.monotonic()))
                if consumer.counts.received != received:
                    received, since = consumer.counts.received, time.monotonic()
                seen[id(consumer)] = received, since
                if time.monotonic() - since > IDLE:
                    self._stop(consumer)

    def _stop(self, consumer: Any) -> None:
        loop = getattr(consumer, "_loop", None)
        if loop is None:
            consumer.stop()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(consumer.stop)


@pytest.fixture(autouse=True)
def stopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Know every loop that an example starts, and stop it when it is idle."""

    def watched(consume: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> Any:
            STARTED.append(consume(*args, **kwargs))
            return STARTED[-1]

        return start

    monkeypatch.setattr(Session, "consume", watched(Session.consume))
    monkeypatch.setattr(aio.Session, "consume", watched(aio.Session.consume))
    stopping = Stopper()
    yield
    stopping.close()
    STARTED.clear()


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Session]:
    """Three orders, in a file that the examples call orders.db."""
    with ackflow.connect(tmp_path / "orders.db") as session:
        session.push("orders", [{"id": n} for n in (1, 2, 3)])
        yield session


@pytest.fixture
def running(q: Session) -> Iterator[Running]:
    """The same at the address that the examples use."""
    served = Running(q)
    yield served
    served.stop()


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """An example sets a handler for SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def names(q: Session, said: list[Any]) -> dict[str, Any]:
    """What the examples take for granted."""

    def work(message: Message) -> None:
        said.append(message.data)
        message.ack()

    async def charge_later(order: Any) -> None:
        said.append(order)

    return {
        "ackflow": ackflow,
        "q": q,
        "work": work,
        "handle": said.append,
        "charge": said.append,
        "charge_later": charge_later,
        "steps": lambda order: [lambda: said.append(order)],
        "valid": lambda order: order["id"] != 2,
        "page_on_call": lambda queue, depth: None,
        "put_aside": lambda: None,
        "wait_a_moment": lambda: time.sleep(IDLE),
    }


def run(code: str, known: dict[str, Any]) -> None:
    """Run a block; one that awaits runs on a loop of its own."""
    compiled = compile(code, "client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, known)
        return

    async def main() -> None:
        await eval(compiled, known)

    asyncio.run(main())


@pytest.mark.parametrize("code", [pytest.param(code, id=at) for at, code in PAGE + README])
def test_a_block_runs(
    code: str,
    q: Session,
    running: Running,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: list[Any] = []
    known = names(q, said)
    code = code.replace("http://localhost:8000", running.url)
    run(code.replace('"orders.db"', repr(str(tmp_path / "orders.db"))), known)
    if known["q"] is not q and isinstance(known["q"], Session):
        known["q"].close()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert not any(consumer.counts.failed for consumer in STARTED)
    if STARTED:
        assert said
        assert STARTED[-1].counts.succeeded > 0


def test_the_page_has_blocks_on_everything_it_promises() -> None:
    assert len(PAGE) >= 16
    assert README
    for word in ("auto_ack", "on_error", "renew", "concurrency", "stop=", "message.lost",
                 "q.buffer", "RetryPolicy", "q.queue(", "ConsumerConfig", "PushPopActor",
                 "ThreadPoolExecutor", "aio.connect"):  # fmt: skip
        assert any(word in code for _, code in PAGE), word


@pytest.mark.parametrize("page", ["docs/client.md", "README.md"])
def test_every_file_a_page_links_to_is_there(page: str) -> None:
    path = DOCS.parent / page
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
