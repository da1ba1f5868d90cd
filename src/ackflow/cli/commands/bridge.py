"""`ackflow bridge`: move messages between RabbitMQ and Ackflow."""

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ... import validate
from ...options import QUEUE_MODE
from ..command import CaFile, TokenOption, require_file
from ..contexts import Location
from ..params import Queue

if TYPE_CHECKING:
    from ...middleware.bridge import Counts, Ends

PANEL = "Operation"
LOG_SECONDS = 10.0  # between two lines about the progress, unless a terminal shows it


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(bridge)


def bridge(
    source: Annotated[
        str,
        typer.Argument(help="Address of the source: amqp://, a file, postgresql:// or http://."),
    ],
    queue: Queue,
    to: Annotated[
        str, typer.Option("--to", help="Address of the target, in one of the same forms.")
    ],
    to_queue: Annotated[
        str | None, typer.Option(help="Queue at the target (default: the same name).")
    ] = None,
    group: Annotated[
        str, typer.Option(help="Consumer group, for a source in Ackflow (default: none).")
    ] = QUEUE_MODE,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages per batch.")] = 500,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when the queue is empty.")
    ] = False,
    bearer: TokenOption = None,
    ca_file: CaFile = None,
) -> None:
    """Move the messages of a queue between RabbitMQ and Ackflow, in either direction.

    A message is acknowledged at the source when the target has it on disk. A target in Ackflow
    stores each message id once; over AMQP, messages may be written twice if the bridge or a broker
    is killed. Ctrl-C or TERM finishes the batch that is being written.
    """
    # Imported here: other commands start faster without it.
    from ...middleware.bridge import Ends
    from ...middleware.bridge.endpoints import is_amqp
    from ...server.logs import start

    start("text", "info")
    if not is_amqp(source):
        require_file(Location(source, None, None, "SOURCE"))
    ends = Ends(
        source, validate.name(queue, "queue"), to, validate.name(to_queue or queue, "--to-queue"),
        group=group, batch=batch, token=bearer or os.environ.get("ACKFLOW_TOKEN"),
        ca_file=ca_file or os.environ.get("ACKFLOW_CA_FILE"),
    )  # fmt: skip
    counts = asyncio.run(_run(ends, until_empty))
    print(f"{counts.moved:,} messages moved, {counts.known:,} of them known to the target")


async def _run(ends: "Ends", until_empty: bool) -> "Counts":
    """Run a bridge until it ends or a signal stops it."""
    from ...middleware.bridge import Bridge, Rate

    rate, terminal = Rate(), sys.stderr.isatty()

    def report(counts: "Counts") -> None:
        print(rate.line(counts), end="\r" if terminal else "\n", file=sys.stderr, flush=True)

    bridge = Bridge(
        *ends.open(), until_empty=until_empty,
        report=report, report_seconds=1.0 if terminal else LOG_SECONDS,
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, bridge.stop)
    try:
        return await bridge.run()
    finally:
        if terminal:
            print(file=sys.stderr)
