"""The errors of all parts: one family, each with a stable code, an HTTP status and a sentence.

Those that only one part raises are defined there, as subclasses of these.

The docstring of a class is its default message. Codes never change; messages may.
"""

from typing import Any, ClassVar


class AckflowError(Exception):
    """An Ackflow operation failed."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or type(self).__doc__ or self.code
        self.details = details
        super().__init__(self.message)


class InvalidArgument(AckflowError):
    """Invalid argument; nothing was changed."""

    code = "invalid_argument"
    status = 400


class UnknownOption(InvalidArgument):
    """Unknown option."""

    code = "unknown_option"


class PayloadTooLarge(InvalidArgument):
    """A message exceeds the size limit; nothing was pushed."""

    code = "payload_too_large"
    status = 413


class BatchTooLarge(InvalidArgument):
    """The batch exceeds the limit of the server."""

    code = "batch_too_large"
    status = 413


class NotFound(AckflowError):
    """Not found."""

    code = "not_found"
    status = 404


class QueueNotFound(NotFound):
    """Queue not found."""

    code = "queue_not_found"


class GroupNotFound(NotFound):
    """Group not found."""

    code = "group_not_found"


class Unauthenticated(AckflowError):
    """The server requires a valid token."""

    code = "unauthenticated"
    status = 401


class Forbidden(AckflowError):
    """The token does not permit this operation."""

    code = "forbidden"
    status = 403


class LeaseLost(AckflowError):
    """The lease is no longer held; the message is settled or leased to another consumer."""

    code = "invalid_lease"
    status = 409


class LeaseExpired(LeaseLost):
    """The lease expired before the message was settled; it is delivered again."""

    code = "lease_expired"
    status = 410


class AlreadySettled(LeaseLost):
    """The delivery was already settled by another operation."""

    code = "already_settled"


class KeyConflict(AckflowError):
    """The request key was used before with different content; use a new key."""

    code = "key_conflict"
    status = 409


class VersionConflict(AckflowError):
    """The value changed since it was read; read it again and retry."""

    code = "version_conflict"
    status = 409


class TransactionFailed(AckflowError):
    """One operation was rejected; the transaction was rolled back."""

    code = "transaction_failed"
    status = 409


class RolledBack(AckflowError):
    """Another message of the atomic batch was rejected; nothing was settled."""

    code = "rolled_back"
    status = 409


class NotMyTurn(AckflowError):
    """Another process runs the upkeep of this database."""

    code = "not_my_turn"
    status = 409


class StageMissing(AckflowError):
    """A stage to be published does not exist; nothing was published."""

    code = "stage_missing"
    status = 409


class Gone(AckflowError):
    """The messages are no longer stored."""

    code = "gone"
    status = 410


class StorageFull(AckflowError):
    """The disk is full; pushes are rejected until there is space, settling continues."""

    code = "storage_full"
    status = 507


class QueueFull(AckflowError):
    """The queue has reached max_size; nothing was pushed."""

    code = "queue_full"
    status = 429


class NoEncryptionKey(AckflowError):
    """No encryption key: set ACKFLOW_ENCRYPTION_KEY to 64 hexadecimal digits."""

    code = "no_encryption_key"
    status = 400


class StorageBusy(AckflowError):
    """Another process holds the database lock; try again."""

    code = "storage_busy"
    status = 503


class StorageFailed(AckflowError):
    """The database could not be read or written."""

    code = "storage_failed"
    status = 500


class OutcomeUnknown(StorageFailed):
    """The database failed during a commit; whether it was committed is unknown."""

    code = "outcome_unknown"


class StorageAway(AckflowError):
    """The database is unreachable; nothing was changed, try again."""

    code = "storage_away"
    status = 503


class PayloadSealed(StorageFailed):
    """The payload is encrypted with a key that is not available."""

    code = "payload_sealed"
    status = 503


class SchemaTooNew(AckflowError):
    """The database was written by a newer Ackflow; upgrade Ackflow to open it."""

    code = "schema_too_new"


class NotADatabase(AckflowError):
    """The file is not an Ackflow database."""

    code = "not_a_database"
    status = 400


class SessionClosed(AckflowError):
    """The session is closed; connect again."""

    code = "session_closed"
    status = 503


class SessionForked(AckflowError):
    """The session was opened in another process; connect in the process that uses it, after the fork."""

    code = "session_forked"
    status = 503


class Unavailable(AckflowError):
    """The server is unreachable or returned an invalid response; try again."""

    code = "unavailable"
    status = 503


class CircuitOpen(AckflowError):
    """Circuit breaker is open"""

    code = "circuit_open"
    status = 503


class BodyTooLarge(PayloadTooLarge):
    """The request body exceeds the limit of the server."""

    code = "body_too_large"


class TooManyWaiting(AckflowError):
    """Too many waiting pops; try again later."""

    code = "too_many_waiting"
    status = 429


class Internal(AckflowError):
    """Internal server error; see the log of the server."""

    code = "internal_error"
    status = 500


def by_code(code: str) -> type[AckflowError]:
    """Return the class of a code; AckflowError for an unknown code."""
    if code not in _CLASSES:  # a dialect's errors may have been imported since the last search
        pending: list[type[AckflowError]] = [AckflowError]
        while pending:
            found = pending.pop()
            _CLASSES.setdefault(found.code, found)
            pending += found.__subclasses__()
    return _CLASSES.get(code, AckflowError)


_CLASSES: dict[str, type[AckflowError]] = {}


def text_of(error: BaseException) -> str:
    """Format an error as one line: its class, then its message."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# Codes of what passes by itself: the same call may work later.
PASSING = frozenset(
    {
        "unavailable",
        "circuit_open",
        "storage_away",
        "storage_busy",
        "too_many_waiting",
        "server_busy",
        "internal_error",
    }
)
