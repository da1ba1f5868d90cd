"""Pushing, popping and settling messages."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from ..errors import InvalidArgument
from ..options import DEFAULT_PARTITION, MAX_BATCH, MAX_PRIORITY, QUEUE_MODE
from ..session.encoding import Item
from ..session.lease import Lease
from ..session.messages import Batch, Message, Receipt, Settled
from . import input, output
from .command import FAILED, NOTHING, Link, command
from .input import BadLine, Feed
from .params import Group, Partition, Queue, duration
from .streams import failed

PANEL = "Messages"
IDS_SHOWN = 20

LeaseToken = Annotated[str, typer.Argument(metavar="TOKEN", help="The token that pop printed.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Messages of the lease (default: all it still holds).", metavar="ID"),
]
Reason = Annotated[str | None, typer.Option("--reason", "-r", help="Why; `ackflow why` tells it.")]


def register(app: typer.Typer) -> None:
    command(app, panel=PANEL, keeps=True, makes=True)(push)
    command(app, panel=PANEL, keeps=True, needs_reader=True)(pop)
    for settle in (ack, nack, release, requeue, reject, extend):
        command(app, panel=PANEL)(settle)


def push(
    link: Link,
    queue: Queue,
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE", help="Messages, each a JSON value (default: lines of stdin)."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="Read messages from a file, one a line; - is stdin."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take text as it is, not as JSON.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="The file or stdin is one message, not one a line.")
    ] = False,
    partition: Partition = None,
    priority: Annotated[int, typer.Option(min=0, max=MAX_PRIORITY, help="0 is served first.")] = 0,
    delay: Annotated[float | None, duration("Deliver them only after this time.")] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The same input pushed again under this key adds nothing."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="NAME=VALUE, for every message; may be repeated."),
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option(help="Id of a single message; seen before, it adds nothing.")
    ] = None,
) -> None:
    """Push messages: arguments, a file, or what is piped in, one JSON value a line."""
    feed = Feed(raw, _headers(header or []), transaction_id)
    where = Pushing(
        link, queue, partition=partition or DEFAULT_PARTITION, priority=priority, delay=delay, key=key
    )  # fmt: skip
    if messages and (file or whole):
        raise InvalidArgument("give messages as arguments or in a file, not both")
    if transaction_id is not None and not whole and len(messages or []) != 1:
        raise InvalidArgument("--transaction-id is for a single message")
    if messages:
        where.push(input.arguments(messages, feed))
    elif file is None and sys.stdin.isatty():
        raise InvalidArgument(
            "nothing to push: give messages as arguments, with --file, or pipe them in"
        )
    else:
        _push_file(where, file, feed, whole)
    where.report()


def _push_file(where: "Pushing", file: str | None, feed: Feed, whole: bool) -> None:
    with input.opened(file) as (source, size, name):
        if whole:
            where.push([feed.item(source.read(), name)])
            return
        with progress(size) as advance:
            try:
                for items, taken in input.lines(source, feed, name, where.keyed):
                    where.push(items)
                    advance(taken)
            except BadLine as bad:
                raise InvalidArgument(f"{bad.message}; {_before(where.pushed)}") from None


def _before(pushed: int) -> str:
    if not pushed:
        return "nothing was pushed"
    return f"{output.many(pushed, 'message')} before it {'was' if pushed == 1 else 'were'} pushed"


class Pushing:
    """Pushes to one place, in as many requests as it takes."""

    def __init__(self, link: Link, queue: str, key: str | None, **options: Any) -> None:
        self._link = link
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
        receipt = self._link.session.push(self._queue, items, key=key, **self._options)
        self.pushed += len(receipt)
        self._known += self._show(receipt)

    def _show(self, receipt: Receipt) -> int:
        """Tell the ids, to programs all of them; answers with how many were known before."""
        known = set(range(len(receipt)) if receipt.repeated else receipt.duplicates)
        self._added = self._added or not receipt.repeated
        if self._link.out.as_json:
            for place, id in enumerate(receipt):
                output.line({"id": id, "duplicate": place in known})
        elif self.pushed <= IDS_SHOWN:
            self._ids += receipt[:]
        return len(known)

    def report(self) -> None:
        out = self._link.out
        if self.pushed <= IDS_SHOWN:
            for id in self._ids:
                out.say(id)
        count = output.many(self.pushed, "message")
        if self.pushed and not self._added:
            was = "was" if self.pushed == 1 else "were"
            out.say(
                f"nothing added: the same {count} {was} pushed to {self._queue} under this key before"
            )
            return
        known = f", {self._known:,} of them known before" if self._known else ""
        out.say(f"{count} pushed to {self._queue}{known}")
        if not self.pushed:
            raise typer.Exit(NOTHING)


@contextmanager
def progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """A bar over the bytes of a long input, for people who watch."""
    if not sys.stderr.isatty() or (size is not None and size < input.AT_ONCE):
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
            raise InvalidArgument(f"a header is NAME=VALUE, not {text!r}")
        found[name] = value
    return found


def pop(
    link: Link,
    queue: Queue,
    group: Group = None,
    batch: Annotated[
        int, typer.Option("--batch", "-n", min=1, max=MAX_BATCH, help="At most so many.")
    ] = 1,
    wait: Annotated[float, duration("Wait so long for a first message.", "--wait", "-w")] = 0.0,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge them once printed.")] = False,
    lease: Annotated[
        float | None, duration("How long they are yours (default: the group's lease time).")
    ] = None,
    partition: Partition = None,
    consumer: Annotated[
        str | None, typer.Option(help="Who holds them (default: host and process).")
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Print the payloads alone, byte for byte.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create a queue that does not exist.")
    ] = False,
) -> None:
    """Lease messages and print them, with the token that settles them. Exits with 3 when there are none."""
    found = link.session.pop(
        queue, group=group or QUEUE_MODE, batch=batch, wait=wait, lease_seconds=lease,
        partition=partition, consumer=consumer, create=create,
    )  # fmt: skip
    if not found:
        _empty(link, queue, found)
    try:
        for message in found:
            _print(link, message, data)
        sys.stdout.flush()
    except BaseException as error:
        # Not all of them were seen: they are given back, uncounted.
        link.session.release(found)
        if isinstance(error, OSError):
            raise failed(error, "; the messages were given back") from None
        raise
    if ack:
        _settled(link, link.session.ack(found, confirm=True), "acknowledged", beside=True)
    elif not link.out.as_json and found.token is not None:
        _how_to_settle(link, found, data)


def _empty(link: Link, queue: str, found: Batch[Message]) -> None:
    held = {
        "paused": f"{queue} is paused; `ackflow resume` ends that",
        "locked": f"{queue} is locked by another lease; see `ackflow leases {queue}`",
        "window": "as many messages are leased as max_ack_pending allows",
    }.get(found.why or "")
    if not link.out.as_json:
        print(f"nothing to pop: {held}" if held else "nothing to pop", file=sys.stderr)
    raise typer.Exit(NOTHING)


def _print(link: Link, message: Message, data: bool) -> None:
    if data:
        output.data(message.raw)
    elif link.out.as_json:
        output.line(output.delivered(message))
    else:
        again = f", delivery {message.deliveries}" if message.redelivered else ""
        pushed = output.ago(message.created_at)
        link.out.say(f"{message.id}  {message.partition}, pushed {pushed}{again}")
        for name, value in message.headers.items():
            link.out.say(f"{name}: {value}")
        link.out.say(f"{output.payload(message.raw)}\n")


def _how_to_settle(link: Link, found: Batch[Message], data: bool) -> None:
    until = output.when(found.expires_at)
    text = f"{output.many(len(found), 'message')} leased until {until} under token {found.token}"
    print(text, file=sys.stderr if data else sys.stdout)
    link.out.hint(f"ackflow ack {found.token}  (or nack, reject, release, extend)")


def ack(
    link: Link,
    token: LeaseToken,
    ids: Ids = None,
) -> None:
    """Acknowledge messages of a lease: they are done."""
    _settle(link, token, lambda lease: lease.ack(*ids or [], confirm=True), "acknowledged")


def nack(
    link: Link,
    token: LeaseToken,
    ids: Ids = None,
    reason: Reason = None,
    delay: Annotated[
        float | None, duration("They come again after this time (default: the group's back-off).")
    ] = None,
) -> None:
    """Say that messages of a lease failed: they come again, and die at the retry limit."""
    _settle(
        link, token, lambda lease: lease.nack(*ids or [], reason=reason, delay=delay), "returned as failed"
    )  # fmt: skip


def release(link: Link, token: LeaseToken, ids: Ids = None) -> None:
    """Give messages of a lease back at once, not counted as failures."""
    _settle(link, token, lambda lease: lease.release(*ids or []), "released")


def requeue(
    link: Link,
    token: LeaseToken,
    ids: Ids = None,
    delay: Annotated[float | None, duration("They come again only after this time.")] = None,
) -> None:
    """Send messages of a lease to the end of their lanes."""
    _settle(link, token, lambda lease: lease.requeue(*ids or [], delay=delay), "requeued")


def reject(link: Link, token: LeaseToken, ids: Ids = None, reason: Reason = None) -> None:
    """Reject messages of a lease: never again; they are kept as dead letters."""
    _settle(link, token, lambda lease: lease.reject(*ids or [], reason=reason), "rejected")


def extend(
    link: Link,
    token: LeaseToken,
    by: Annotated[
        float | None, duration("So long from now (default: the group's lease time).", "--by")
    ] = None,
) -> None:
    """Keep a lease alive."""
    until = link.session.lease(token).extend(by)
    link.out.record({"token": token, "expires_at": until}, f"leased until {output.when(until)}")


def _settle(link: Link, token: str, verb: Callable[[Lease], Settled], done: str) -> None:
    _settled(link, verb(link.session.lease(token)), done)


def _settled(link: Link, result: Settled, done: str, beside: bool = False) -> None:
    """Tell what settling did, `beside` the output; what was refused makes the command fail."""
    if link.out.as_json:
        if not beside:
            output.line(msgspec.structs.asdict(result))
    else:
        file = sys.stderr if beside else sys.stdout
        print(f"{output.many(result.settled, 'message')} {done}", file=file)
        if result.noop:
            print(f"{result.noop:,} had been before", file=file)
        if result.dead:
            print(f"{result.dead:,} of them became dead letters; see `ackflow dlq`", file=file)
        for refusal in result.refused:
            print(f"{refusal.message_id}: {refusal.message}", file=sys.stderr)
    if result.refused:
        raise typer.Exit(FAILED)
