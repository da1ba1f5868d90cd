"""Message commands: push, pop, settle, extend."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from ...errors import InvalidArgument
from ...options import DEFAULT_PARTITION, MAX_BATCH, MAX_PRIORITY, QUEUE_MODE
from ...session.encoding import Item
from ...session.lease import Lease
from ...session.messages import Batch, Message, Receipt, Settled
from .. import input, output
from ..command import Target, command
from ..errors import FAILED, NOTHING
from ..input import BadLine, MessageFormat
from ..params import Group, Partition, Queue, duration
from ..streams import output_error

PANEL = "Messages"
IDS_SHOWN = 20

LeaseToken = Annotated[str, typer.Argument(metavar="TOKEN", help="Lease token, as printed by pop.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Messages of the lease (default: all that are not settled).", metavar="ID"),
]
Reason = Annotated[
    str | None, typer.Option("--reason", "-r", help="Reason, shown by `ackflow why`.")
]


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL, long_running=True, creates=True)(push)
    command(app, panel=PANEL, long_running=True, needs_reader=True)(pop)
    for settle in (ack, nack, release, requeue, reject, extend):
        command(app, panel=PANEL)(settle)


def push(
    target: Target,
    queue: Queue,
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE", help="Messages, each a JSON value (default: lines of stdin)."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="Read one message per line from a file; - is stdin."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Push plain text instead of JSON.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Push the file or stdin as one message.")
    ] = False,
    partition: Partition = None,
    priority: Annotated[
        int, typer.Option(min=0, max=MAX_PRIORITY, help="Priority; 0 is served first.")
    ] = 0,
    delay: Annotated[float | None, duration("Delay before the first delivery.")] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Idempotency key: the same input with the same key is pushed once."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="Header NAME=VALUE of every message; may be repeated."),
    ] = None,
    transaction_id: Annotated[
        str | None,
        typer.Option(help="Transaction id of a single message; a known id is not pushed again."),
    ] = None,
) -> None:
    """Push messages from arguments, a file or stdin, one JSON value per line."""
    format = MessageFormat(raw, _headers(header or []), transaction_id)
    where = Pusher(
        target, queue, partition=partition or DEFAULT_PARTITION, priority=priority, delay=delay, key=key
    )  # fmt: skip
    if messages and (file or whole):
        raise InvalidArgument("give messages as arguments or in a file, not both")
    if transaction_id is not None and not whole and len(messages or []) != 1:
        raise InvalidArgument("--transaction-id requires a single message")
    if messages:
        where.push(input.from_arguments(messages, format))
    elif file is None and sys.stdin.isatty():
        raise InvalidArgument(
            "no messages to push: give them as arguments, with --file, or on stdin"
        )
    else:
        _push_file(where, file, format, whole)
    where.report()


def _push_file(where: "Pusher", file: str | None, format: MessageFormat, whole: bool) -> None:
    with input.open_input(file) as (source, size, name):
        if whole:
            where.push([format.item(source.read(), name)])
            return
        with progress(size) as advance:
            try:
                for items, taken in input.read_lines(source, format, name, where.keyed):
                    where.push(items)
                    advance(taken)
            except BadLine as bad:
                raise InvalidArgument(f"{bad.message}; {_pushed_before(where.pushed)}") from None


def _pushed_before(pushed: int) -> str:
    if not pushed:
        return "nothing was pushed"
    return f"{output.plural(pushed, 'message')} before it {'was' if pushed == 1 else 'were'} pushed"


class Pusher:
    """Pushes to one partition in several requests."""

    def __init__(self, target: Target, queue: str, key: str | None, **options: Any) -> None:
        self._target = target
        self._queue = queue
        self._options = options
        self._key = key
        self._requests = 0
        self._ids: list[str] = []
        self.pushed = 0
        self._known = 0
        self._added = False

    @property
    def keyed(self) -> bool:
        return self._key is not None

    def push(self, items: list[Item]) -> None:
        if not items:
            return
        key = self._key
        if key is not None and self._requests:
            key = f"{key}.{self._requests}"
        self._requests += 1
        receipt = self._target.session.push(self._queue, items, key=key, **self._options)
        self.pushed += len(receipt)
        self._known += self._show(receipt)

    def _show(self, receipt: Receipt) -> int:
        """Print or collect the ids; returns the number of duplicates."""
        known = set(range(len(receipt)) if receipt.repeated else receipt.duplicates)
        self._added = self._added or not receipt.repeated
        if self._target.out.as_json:
            for index, id in enumerate(receipt):
                output.line({"id": id, "duplicate": index in known})
        elif self.pushed <= IDS_SHOWN:
            self._ids += receipt[:]
        return len(known)

    def report(self) -> None:
        out = self._target.out
        if self.pushed <= IDS_SHOWN:
            for id in self._ids:
                out.say(id)
        count = output.plural(self.pushed, "message")
        if self.pushed and not self._added:
            was = "was" if self.pushed == 1 else "were"
            out.say(
                f"nothing added: the same {count} {was} pushed to {self._queue} with this key before"
            )
            return
        known = f", including {output.plural(self._known, 'duplicate')}" if self._known else ""
        out.say(f"{count} pushed to {self._queue}{known}")
        if not self.pushed:
            raise typer.Exit(NOTHING)


@contextmanager
def progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for a long input on a terminal."""
    if not sys.stderr.isatty() or (size is not None and size < input.BATCH_BYTES):
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = [
        bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn(),
    ]  # fmt: skip
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda taken: bar.advance(task, taken)


def _headers(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidArgument(f"a header must be NAME=VALUE, got {text!r}")
        found[name] = value
    return found


def pop(
    target: Target,
    queue: Queue,
    group: Group = None,
    batch: Annotated[
        int, typer.Option("--batch", "-n", min=1, max=MAX_BATCH, help="Maximum number of messages.")
    ] = 1,
    wait: Annotated[float, duration("Time to wait for the first message.", "--wait", "-w")] = 0.0,
    ack: Annotated[
        bool, typer.Option("--ack", help="Acknowledge the messages after printing.")
    ] = False,
    lease: Annotated[float | None, duration("Lease time (default: that of the group).")] = None,
    partition: Partition = None,
    consumer: Annotated[
        str | None, typer.Option(help="Consumer name (default: host and process).")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Print only the payloads, byte for byte.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create a queue that does not exist.")
    ] = False,
) -> None:
    """Lease messages and print them with the lease token. Exits with 3 if there are none."""
    found = target.session.pop(
        queue, group=group or QUEUE_MODE, batch=batch, wait=wait, lease_seconds=lease,
        partition=partition, consumer=consumer, create=create,
    )  # fmt: skip
    if not found:
        _empty(target, queue, found)
    try:
        for message in found:
            _print(target, message, data)
        sys.stdout.flush()
    except BaseException as error:
        # The messages were not printed in full: release them, which counts no delivery.
        target.session.release(found)
        if isinstance(error, OSError):
            raise output_error(error, "; the messages were released") from None
        raise
    if ack:
        _settled(target, target.session.ack(found, confirm=True), "acknowledged", beside=True)
    elif not target.out.as_json and found.token is not None:
        _how_to_settle(target, found, data)


def _empty(target: Target, queue: str, found: Batch[Message]) -> None:
    held = {
        "paused": f"{queue} is paused; resume with `ackflow resume`",
        "locked": f"{queue} is locked by another lease; see `ackflow leases {queue}`",
        "window": "max_ack_pending messages are leased",
    }.get(found.why or "")
    if not target.out.as_json:
        print(f"no messages: {held}" if held else "no messages", file=sys.stderr)
    raise typer.Exit(NOTHING)


def _print(target: Target, message: Message, data: bool) -> None:
    if data:
        output.data(message.raw)
    elif target.out.as_json:
        output.line(output.delivery_record(message))
    else:
        again = f", delivery {message.deliveries}" if message.redelivered else ""
        pushed = output.ago(message.created_at)
        target.out.say(f"{message.id}  {message.partition}, pushed {pushed}{again}")
        for name, value in message.headers.items():
            target.out.say(f"{name}: {value}")
        target.out.say(f"{output.payload(message.raw)}\n")


def _how_to_settle(target: Target, found: Batch[Message], data: bool) -> None:
    until = output.when(found.expires_at)
    text = f"{output.plural(len(found), 'message')} leased until {until} under token {found.token}"
    print(text, file=sys.stderr if data else sys.stdout)
    target.out.hint(f"ackflow ack {found.token}  (or nack, reject, release, extend)")


def ack(
    target: Target,
    token: LeaseToken,
    ids: Ids = None,
) -> None:
    """Acknowledge messages of a lease."""
    _settle(target, token, lambda lease: lease.ack(*ids or [], confirm=True), "acknowledged")


def nack(
    target: Target,
    token: LeaseToken,
    ids: Ids = None,
    reason: Reason = None,
    delay: Annotated[
        float | None, duration("Delay before redelivery (default: the group's back-off).")
    ] = None,
) -> None:
    """Report messages of a lease as failed: they are redelivered, up to the retry limit."""
    _settle(
        target, token, lambda lease: lease.nack(*ids or [], reason=reason, delay=delay), "nacked"
    )  # fmt: skip


def release(target: Target, token: LeaseToken, ids: Ids = None) -> None:
    """Return messages of a lease for immediate redelivery, not counted as failures."""
    _settle(target, token, lambda lease: lease.release(*ids or []), "released")


def requeue(
    target: Target,
    token: LeaseToken,
    ids: Ids = None,
    delay: Annotated[float | None, duration("Delay before redelivery.")] = None,
) -> None:
    """Move messages of a lease to the end of their lanes."""
    _settle(target, token, lambda lease: lease.requeue(*ids or [], delay=delay), "requeued")


def reject(target: Target, token: LeaseToken, ids: Ids = None, reason: Reason = None) -> None:
    """Reject messages of a lease: they become dead letters."""
    _settle(target, token, lambda lease: lease.reject(*ids or [], reason=reason), "rejected")


def extend(
    target: Target,
    token: LeaseToken,
    by: Annotated[
        float | None, duration("New lease time from now (default: that of the group).", "--by")
    ] = None,
) -> None:
    """Extend a lease."""
    until = target.session.lease(token).extend(by)
    target.out.record({"token": token, "expires_at": until}, f"leased until {output.when(until)}")


def _settle(target: Target, token: str, verb: Callable[[Lease], Settled], done: str) -> None:
    _settled(target, verb(target.session.lease(token)), done)


def _settled(target: Target, result: Settled, done: str, beside: bool = False) -> None:
    """Print the result of a settle, to stderr if `beside`; fails if a message was rejected."""
    if target.out.as_json:
        if not beside:
            output.line(msgspec.structs.asdict(result))
    else:
        file = sys.stderr if beside else sys.stdout
        print(f"{output.plural(result.settled, 'message')} {done}", file=file)
        if result.noop:
            print(f"{result.noop:,} already settled", file=file)
        if result.dead:
            print(f"{result.dead:,} became dead letters; see `ackflow dlq`", file=file)
        for refusal in result.refused:
            print(f"{refusal.message_id}: {refusal.message}", file=sys.stderr)
    if result.refused:
        raise typer.Exit(FAILED)
