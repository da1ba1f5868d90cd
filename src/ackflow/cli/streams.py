"""Standard output and standard error of commands that must outlive whoever reads them."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import AckflowError


class OutputFailed(AckflowError):
    """The output could not be written."""

    code = "output_failed"


def failed(error: OSError, consequence: str = "") -> AckflowError:
    if error.filename is not None:
        return AckflowError(f"{error.filename}: {error.strerror}{consequence}")
    why = "its reader closed it" if isinstance(error, BrokenPipeError) else error.strerror or error
    return OutputFailed(f"the output could not be written: {why}{consequence}")


def discard() -> None:
    """Send the rest of standard output nowhere, so that it does not fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Persistent(io.RawIOBase):
    """A file descriptor; once a write has failed, further ones are dropped."""

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
    """While this lasts, no failed write to standard output or error ends the command.

    A reader that closes its pipe has what it wanted. Any other failure is raised at the end.
    """
    before = sys.stdout, sys.stderr
    try:
        raw, beside = (_Persistent(stream.fileno()) for stream in before)
    except (OSError, ValueError):  # captured in this process: nothing to outlive
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
        raise failed(raw.error)


def _text(raw: _Persistent, like: Any) -> io.TextIOWrapper:
    like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=like.line_buffering
    )
