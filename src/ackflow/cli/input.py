"""Input of `ackflow push`: arguments, a file or stdin, as JSON or text."""

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

BATCH_BYTES = 1 << 20  # size of one push
BATCH_MESSAGES = 10_000


class MessageFormat(msgspec.Struct):
    """How input becomes messages."""

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
            f"{where} is not valid JSON: {shown!r} ({error}); give --raw to push plain text"
        ) from None
    return msgspec.Raw(given)


def from_arguments(texts: list[str], format: MessageFormat) -> list[Item]:
    return [
        format.item(os.fsencode(text), f"message {number}") for number, text in enumerate(texts, 1)
    ]


@contextmanager
def open_input(path: str | None) -> Iterator[tuple[BinaryIO, int | None, str]]:
    """Open a file, or stdin for None and `-`; yields it with its size, if known, and its name."""
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
    """A line of the input is invalid; the lines before it are valid."""

    code = "bad_line"
    status = 400


def read_lines(
    file: BinaryIO, format: MessageFormat, name: str, fixed: bool
) -> Iterator[tuple[list[Item], int]]:
    """Read one message per line; yields batches with the number of bytes read for them.

    Slow input is passed on as it arrives, unless `fixed` asks for the same batches whenever the same
    input is read. Empty lines are skipped. The messages before an invalid line are yielded first.
    """
    number, rest = 0, b""
    pending: list[bytes] = []
    while piece := _read(file):
        *whole, rest = (rest + piece).split(b"\n")
        pending += whole
        while some := _take_batch(pending, fixed):
            yield from _items(some, number, format, name)
            number += len(some)
        if len(rest) > MAX_PAYLOAD:
            raise BadLine(f"line {number + 1} of {name} exceeds the size of a message")
    pending += [rest] if rest else []
    while some := _take_batch(pending, False):
        yield from _items(some, number, format, name)
        number += len(some)


def _take_batch(pending: list[bytes], full: bool) -> list[bytes]:
    """Remove the lines of one push from `pending`; with `full`, none if they are too few."""
    size = 0
    for count, line in enumerate(pending, 1):
        size += len(line)
        if size >= BATCH_BYTES or count == BATCH_MESSAGES:
            break
    else:
        if full:
            return []
        count = len(pending)
    some = pending[:count]
    del pending[:count]
    return some


def _items(
    some: list[bytes], before: int, format: MessageFormat, name: str
) -> Iterator[tuple[list[Item], int]]:
    items: list[Item] = []
    taken = 0
    for number, given in enumerate(some, before + 1):
        taken += len(given) + 1
        text = given.removesuffix(b"\r")
        if not text.strip():
            continue
        try:
            items.append(format.item(text, f"line {number} of {name}"))
        except InvalidArgument as error:
            yield items, taken
            hint = ", or --whole if the input is one message" if number == 1 else ""
            raise BadLine(error.message + hint) from None
    yield items, taken


def _read(file: BinaryIO) -> bytes:
    """Wait for input, then read what is available, up to `BATCH_BYTES`."""
    read = getattr(file, "read1", file.read)
    piece: bytes = read(BATCH_BYTES)
    parts, size = [piece], len(piece)
    while piece and size < BATCH_BYTES and _has_input(file):
        piece = read(BATCH_BYTES - size)
        parts.append(piece)
        size += len(piece)
    return b"".join(parts)


def _has_input(file: BinaryIO) -> bool:
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (io.UnsupportedOperation, ValueError, OSError):
        return False
