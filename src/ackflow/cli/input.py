"""Messages to push: from arguments, a file or a pipe, as JSON, lines of text, or one whole."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec

from ..errors import AckflowError, InvalidArgument
from ..options import MAX_PAYLOAD
from ..session.encoding import Item

AT_ONCE = 1 << 20  # bytes gathered before they are pushed
MOST = 10_000  # messages in one push


class Feed(msgspec.Struct):
    """How each message is made of what was read."""

    raw: bool = False
    headers: dict[str, str] = {}
    transaction_id: str | None = None

    def item(self, given: bytes, where: str) -> Item:
        data: Any = given if self.raw else _json(given, where)
        return Item(data=data, headers=self.headers, transaction_id=self.transaction_id)


def _json(given: bytes, where: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(given)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = given[:40].decode(errors="replace")
        raise InvalidArgument(
            f"{where} is not JSON: {shown!r} ({error}); give --raw to push text as it is"
        ) from None
    return msgspec.Raw(given)


def arguments(texts: list[str], feed: Feed) -> list[Item]:
    return [
        feed.item(os.fsencode(text), f"message {number}") for number, text in enumerate(texts, 1)
    ]


@contextmanager
def opened(path: str | None) -> Iterator[tuple[BinaryIO, int | None, str]]:
    """A file, or stdin for None and `-`; with its size, when it has one, and its name."""
    if path in (None, "-"):
        yield sys.stdin.buffer, None, "stdin"
        return
    assert path is not None
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        yield file, size or None, path


class BadLine(AckflowError):
    """A line is not what was expected; what came before it is fine."""

    code = "bad_line"
    status = 400


def lines(file: BinaryIO, feed: Feed, name: str, steady: bool) -> Iterator[tuple[list[Item], int]]:
    """Messages line by line, many at once, with the number of bytes they took.

    What trickles in is passed on as it comes, unless `steady` asks for the same parts whenever the
    same input is read. Empty lines are left out. At a line that is not JSON the messages before it
    are given first.
    """
    number, rest = 0, b""
    pending: list[bytes] = []
    while piece := _read(file):
        *whole, rest = (rest + piece).split(b"\n")
        pending += whole
        while some := _part(pending, steady):
            yield from _items(some, number, feed, name)
            number += len(some)
        if len(rest) > MAX_PAYLOAD:
            raise BadLine(f"line {number + 1} of {name} is too long for a message")
    pending += [rest] if rest else []
    while some := _part(pending, False):
        yield from _items(some, number, feed, name)
        number += len(some)


def _part(pending: list[bytes], full: bool) -> list[bytes]:
    """Take as many lines as one push should have; none when it would not be `full`."""
    size = 0
    for count, line in enumerate(pending, 1):
        size += len(line)
        if size >= AT_ONCE or count == MOST:
            break
    else:
        if full:
            return []
        count = len(pending)
    some = pending[:count]
    del pending[:count]
    return some


def _items(
    some: list[bytes], before: int, feed: Feed, name: str
) -> Iterator[tuple[list[Item], int]]:
    items: list[Item] = []
    taken = 0
    for number, given in enumerate(some, before + 1):
        taken += len(given) + 1
        text = given.removesuffix(b"\r")
        if not text.strip():
            continue
        try:
            items.append(feed.item(text, f"line {number} of {name}"))
        except InvalidArgument as error:
            yield items, taken
            hint = ", or --whole when it is one message" if number == 1 else ""
            raise BadLine(error.message + hint) from None
    yield items, taken


def _read(file: BinaryIO) -> bytes:
    """What is there, once there is something: up to `AT_ONCE`, without waiting for more."""
    read = getattr(file, "read1", file.read)
    piece: bytes = read(AT_ONCE)
    parts, size = [piece], len(piece)
    while piece and size < AT_ONCE and _waiting(file):
        piece = read(AT_ONCE - size)
        parts.append(piece)
        size += len(piece)
    return b"".join(parts)


def _waiting(file: BinaryIO) -> bool:
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (io.UnsupportedOperation, ValueError, OSError):
        return False
