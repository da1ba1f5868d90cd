"""Errors that only the command line raises, and the exit codes."""

from ..errors import AckflowError, InvalidArgument, NotFound, StorageAway

FAILED, USAGE, NOTHING, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130


class NoDatabase(AckflowError):
    """The database does not exist."""

    code = "no_database"


class ExtraMissing(AckflowError):
    """A package that the command needs is not installed."""

    code = "extra_missing"


class CommandRefused(AckflowError):
    """The command was not carried out."""

    code = "refused"


class OutputFailed(AckflowError):
    """The output could not be written."""

    code = "output_failed"


_UNREACHABLE = {"unavailable", "circuit_open", StorageAway.code, NoDatabase.code}


def is_unreachable(error: AckflowError) -> bool:
    """Whether the database or server could not be reached."""
    return error.code in _UNREACHABLE


def exit_code(error: AckflowError) -> int:
    if is_unreachable(error):
        return UNREACHABLE
    if isinstance(error, NotFound):
        return NOTHING
    return USAGE if isinstance(error, InvalidArgument) else FAILED
