"""`ackflow bench`: a short benchmark in a temporary queue."""

import secrets
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import typer
from msgspec import Struct

from ...errors import AckflowError, InvalidArgument
from ...options import MAX_BATCH
from ...session.session import Session
from ..command import Target, command
from ..output import Columns, plural

PANEL = "Operation"
MEASURED = Columns(
    ("what", ">messages/s", ">p50 ms", ">p99 ms"), ("p99 ms", "p50 ms", "messages/s")
)


class Measured(Struct):
    """The result of one measurement."""

    what: str
    messages: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL, creates=True, long_running=True)(bench)


def bench(
    target: Target,
    messages: Annotated[
        int, typer.Option("--messages", "-n", min=1, help="Number of messages to push and pop.")
    ] = 20_000,
    batch: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Messages per request.")] = 1_000,
    size: Annotated[int, typer.Option(min=2, max=1 << 20, help="Bytes per message.")] = 200,
    singles: Annotated[
        int, typer.Option(min=1, help="Number of messages to send one by one.")
    ] = 100,
) -> None:
    """Run a short benchmark against a database or server."""
    if messages < batch:
        batch = messages
    if batch * size > 256 << 20:
        raise InvalidArgument("a request must have at most 256 MiB; give a smaller --batch")
    queue = f"ackflow-bench-{secrets.token_hex(4)}"
    session = target.session
    try:
        found = _measure(session, queue, messages, batch, size, singles)
    finally:
        _remove(target, session, queue)
    kind = "server" if target.location.remote else "opened in this process"
    target.out.say(
        f"{target.location.redacted} ({kind}): {plural(messages, 'message')} of {size} bytes, {batch:,} per "
        f"request, then {plural(singles, 'message')} one by one, from one thread.\n"
        "A push is on disk when it returns; payloads are encoded and decoded. "
        f"The temporary queue {queue} was removed.\n"
    )
    rows = ([m.what, f"{m.per_second:,.0f}", f"{m.p50_ms:,.2f}", f"{m.p99_ms:,.2f}"] for m in found)
    target.out.table(MEASURED, rows, found)


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
            raise AckflowError(f"no messages in {queue}: another consumer has taken them")
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


def _remove(target: Target, session: Session, queue: str) -> None:
    try:
        session.delete_queue(queue)
    except AckflowError as error:
        target.out.note(f"queue {queue} could not be removed: {error.message}")
