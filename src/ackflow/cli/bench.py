"""A short measurement against a database or server, in a queue of its own that is removed again."""

import secrets
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import typer
from msgspec import Struct

from ..errors import AckflowError, InvalidArgument
from ..options import MAX_BATCH
from ..session.session import Session
from .command import Link, command
from .output import Columns, many

PANEL = "Operation"
MEASURED = Columns(
    ("what", ">messages/s", ">p50 ms", ">p99 ms"), ("p99 ms", "p50 ms", "messages/s")
)


class Measured(Struct):
    """What was done, how often, and how long it took."""

    what: str
    messages: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL, makes=True, keeps=True)(bench)


def bench(
    link: Link,
    messages: Annotated[
        int, typer.Option("--messages", "-n", min=1, help="How many to push and pop.")
    ] = 20_000,
    batch: Annotated[
        int, typer.Option(min=1, max=MAX_BATCH, help="How many in one request.")
    ] = 1_000,
    size: Annotated[int, typer.Option(min=2, max=1 << 20, help="Bytes of a message.")] = 200,
    singles: Annotated[int, typer.Option(min=1, help="How many to send one by one.")] = 100,
) -> None:
    """Measure this database or server for a moment, and say what was done."""
    if messages < batch:
        batch = messages
    if batch * size > 256 << 20:
        raise InvalidArgument("a request of more than 256 MiB is too large; take a smaller --batch")
    queue = f"ackflow-bench-{secrets.token_hex(4)}"
    session = link.session
    try:
        found = _measure(session, queue, messages, batch, size, singles)
    finally:
        _remove(link, session, queue)
    kind = "a server" if link.place.remote else "opened in this process"
    link.out.say(
        f"{link.place.shown} ({kind}): {many(messages, 'message')} of {size} bytes, {batch:,} in a "
        f"request, then {many(singles, 'message')} one by one, by one thread.\n"
        "A push is on disk when it is answered; payloads are encoded and decoded. "
        f"The queue {queue} was made for it and removed.\n"
    )
    rows = ([m.what, f"{m.per_second:,.0f}", f"{m.p50_ms:,.2f}", f"{m.p99_ms:,.2f}"] for m in found)
    link.out.table(MEASURED, rows, found)


def _measure(
    session: Session, queue: str, messages: int, batch: int, size: int, singles: int
) -> list[Measured]:
    payload = "x" * (size - 2)
    rounds = [min(batch, messages - at) for at in range(0, messages, batch)]
    found = [
        _timed("push", rounds, lambda n: session.push(queue, [payload] * n)),
        _timed("pop and ack", rounds, lambda n: _take(session, queue, n)),
    ]

    def one(_: int) -> None:
        session.push(queue, payload)
        _take(session, queue, 1)

    return [*found, _timed("push, pop and ack, one by one", [1] * singles, one)]


def _take(session: Session, queue: str, want: int) -> None:
    while want > 0:
        found = session.pop(queue, batch=want, wait=5.0)
        if not found:
            raise AckflowError(f"the messages of {queue} did not come; somebody else took them")
        for message in found:
            _ = message.data
        session.ack(found)
        want -= len(found)


def _timed(what: str, rounds: list[int], act: Callable[[int], object]) -> Measured:
    times = []
    for n in rounds:
        started = time.perf_counter()
        act(n)
        times.append(time.perf_counter() - started)
    total = sum(times)
    parts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
    return Measured(
        what, sum(rounds), total, sum(rounds) / total, parts[49] * 1000, parts[98] * 1000
    )


def _remove(link: Link, session: Session, queue: str) -> None:
    try:
        session.delete_queue(queue)
    except AckflowError as error:
        link.out.note(f"the queue {queue} could not be removed: {error.message}")
