"""Standard output and error of commands that continue after their reader closes the pipe."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import AckflowError
from .errors import OutputFailed


def output_error(error: OSError, consequence: str = "") -> AckflowError:
    """The error to raise for a failed write, with what the command did about it."""
    if error.filename is not None:
        return AckflowError(f"{error.filename}: {error.strerror}{consequence}")
    closed = isinstance(error, BrokenPipeError)
    why = "the reader closed the pipe" if closed else error.strerror or error
    return OutputFailed(f"the output could not be written: {why}{consequence}")


def discard() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Persistent(io.RawIOBase):
    """A file descriptor that drops all writes after the first failed one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return os.write(self._descriptor, data)
            except OSError as error:
                self.error = error
        return len(data)


@contextmanager
def persistent() -> Iterator[None]:
    """Let the command finish even if a write to standard output or error fails.

    A closed pipe is ignored; any other failure is raised at the end.
    """
    before = sys.stdout, sys.stderr
    try:
        raw, beside = (_Persistent(stream.fileno()) for stream in before)
    except (OSError, ValueError):  # captured in this process, as in tests
        yield
        return
    sys.stdout, sys.stderr = _text(raw, before[0]), _text(beside, before[1])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
    if raw.error is not None and not isinstance(raw.error, BrokenPipeError):
        raise output_error(raw.error)


def _text(raw: _Persistent, like: Any) -> io.TextIOWrapper:
    like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=like.line_buffering
    )
