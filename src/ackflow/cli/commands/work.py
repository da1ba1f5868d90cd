"""`ackflow work` runs the processors and tasks of a worker; `ackflow workers` lists the running ones."""

import logging
import os
import sys
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ... import validate
from ...errors import AckflowError, InvalidArgument, text_of
from ...options import QUEUE_MODE
from ..command import Target, command
from ..output import Cell, Columns, ago, colored
from ..params import duration, with_options

if TYPE_CHECKING:
    from ...worker.coordination.presence import WorkerInfo
    from ...worker.worker import Worker

PANEL = "Operation"
WORKERS = Columns(
    ("worker", ">process", "serves", "does", ">busy", ">done", ">failed", "started", "last seen"),
    ("last seen", "started", "process", "busy", "does", "failed", "done"),
)


class ProcessorFailed(AckflowError):
    """A processor raised an exception."""

    code = "processor_failed"


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL, creates=True, long_running=True)(with_options(work))
    command(app, panel="Inspection", needs_reader=True)(workers)


@dataclass
class WorkOptions:
    """The options of `ackflow work`."""

    queues: Annotated[
        str | None,
        typer.Option(help="Queues to serve, with weights, such as mail=3,orders (default: all)."),
    ] = None
    queue_set: Annotated[str | None, typer.Option(help="A queue set that the worker defines.")] = (
        None
    )
    mode: Annotated[
        str,
        typer.Option(
            help="Order of the queues: round-robin, sequential-exhaustive, "
            "strict-priority-interleaving, hierarchical or weighted."
        ),
    ] = "round-robin"
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "-c", min=1, max=1000, help="Number of messages processed at a time."
        ),
    ] = 1
    processes: Annotated[int, typer.Option(min=1, max=256, help="Number of processes.")] = 1
    prefetch: Annotated[
        int | None,
        typer.Option(
            min=0, help="Messages popped ahead (default: as many as are started within 0.2 s)."
        ),
    ] = None
    message_limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of messages.")
    ] = None
    time_limit: Annotated[
        float | None, duration("Stop after this time, such as 1h.", least=0.001)
    ] = None
    memory_limit: Annotated[
        int | None, typer.Option(min=1, help="Stop when the process uses this many MB of memory.")
    ] = None
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after an exception of a processor.")
    ] = False
    supervise: Annotated[
        bool, typer.Option("--supervise", help="Restart a consumer when it ends.")
    ] = False
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Restart when a Python file below the current folder changes."
        ),
    ] = False
    log_format: Annotated[str, typer.Option(help="Log format: text or json.")] = "text"
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = (
        "info"
    )


def work(
    target: Target,
    worker: Annotated[
        str, typer.Argument(metavar="MODULE:WORKER", help="The worker, such as shop.tasks:worker.")
    ],
    options: WorkOptions,
) -> None:
    """Run the processors and tasks of a worker until stopped.

    Ctrl-C or TERM finishes the messages that are being processed and ends with exit code 0. An
    exception of a processor ends the consumer with exit code 1, unless --keep-going is given;
    --supervise starts it again.
    """
    # Imported here: other commands start faster without it.
    from ...worker.consumer.modes import MODES
    from ...worker.extensions.logs import StartedLog
    from ...worker.loading import load_worker
    from ...worker.supervise import PARENT_PIPE, Supervisor, stop_with_parent

    _start_logs(options.log_format, options.log_level)
    validate.one_of(options.mode, "--mode", MODES)
    restart = options.supervise or options.reload
    if PARENT_PIPE not in os.environ and (restart or options.processes > 1):
        if not options.reload:  # an error here is no reason to try again
            load_worker(worker).select(options.queues, options.queue_set)
        Supervisor(
            [sys.executable, "-m", "ackflow", *_child_arguments(sys.argv[1:])],
            processes=options.processes, restart=restart,
            reload=Path.cwd() if options.reload else None,
        ).run()  # fmt: skip
        return
    found = load_worker(worker)
    _connect(found, target)
    stop_with_parent(found)
    log = logging.getLogger("ackflow.worker")
    try:
        # A database that is not there is said first.
        chosen = found.select(options.queues, options.queue_set)
        found.prepare(chosen)
        queues = ", ".join(one.label for one in chosen)
        found.add(StartedLog(
            f"<Worker of {queues}> is started, {options.concurrency} at a time; Ctrl-C stops it"
        ))  # fmt: skip
        counts = found.run(
            queues=options.queues, queue_set=options.queue_set, mode=options.mode,
            concurrency=options.concurrency, prefetch=options.prefetch,
            message_limit=options.message_limit, time_limit=options.time_limit,
            memory_limit=options.memory_limit, keep_going=options.keep_going,
        )  # fmt: skip
    except (AckflowError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ProcessorFailed(
            f"an exception ended the consumer: {text_of(error)}. The message is at the end of "
            "its queue; start the consumer again, or use --supervise or --keep-going"
        ) from error
    finally:
        found.close()
    done = ", ".join(f"{n:,} {name}" for name, n in structs.asdict(counts).items() if n)
    log.info("the consumer has ended: %s", done or "no messages")


def workers(target: Target) -> None:
    """List running workers: what they serve, what they do, and what they have done."""
    from ...worker.coordination import presence

    found = presence.workers(target.session)
    if not found:
        target.out.say("no workers")
        target.out.hint("ackflow work module:worker")
        return
    target.out.table(WORKERS, map(_worker_row, found), found)


def _worker_row(worker: "WorkerInfo") -> list[Cell]:
    serves = [
        one.queue if one.group == QUEUE_MODE else f"{one.queue}/{one.group}"
        for one in worker.queues
    ]
    does = [f"{one.handler}, {ago(one.since)}" for one in worker.running]
    return [
        worker.consumer, str(worker.pid), _first(serves), _first(does) or worker.reason or "waits",
        f"{worker.busy} of {worker.concurrency}", f"{worker.acked:,}",
        colored(worker.failed + worker.rejected, "red"), ago(worker.started_at),
        ago(worker.seen_at),
    ]  # fmt: skip


def _first(some: list[str]) -> str:
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def _connect(worker: "Worker", target: Target) -> None:
    """Use the database that was given on the command line in place of the worker's own."""
    location = target.location
    if location.chosen:
        worker.connect_to(location.url, token=location.token, ca_file=location.ca_file)


def _child_arguments(given: list[str]) -> list[str]:
    """The command line of one consumer: the same, without what makes a supervisor."""
    kept: list[str] = []
    skip = False
    for argument in given:
        if skip:
            skip = False
        elif argument == "--processes":
            skip = True
        elif argument not in ("--supervise", "--reload") and not argument.startswith(
            "--processes="
        ):
            kept.append(argument)
    if "work" not in kept:
        raise InvalidArgument("--supervise, --reload and --processes need the command line")
    return kept


def _start_logs(log_format: str, log_level: str) -> None:
    """Log to standard error: the worker's lines and those of the handlers' own loggers.

    What handlers print is written line by line, also to a file, where a kill would lose a buffer.
    """
    from ...server.logs import FORMATS, LEVELS, start

    chosen: Any = validate.one_of(log_format, "--log-format", FORMATS)
    level = validate.one_of(log_level, "--log-level", LEVELS)
    start(chosen, level)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.getLogger("ackflow").handlers[0])
        root.setLevel(level.upper())
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
