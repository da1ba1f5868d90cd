"""Every error Ackflow raises: one family, each with a stable code, an HTTP status and a sentence.

The docstring of a class is its default message. Codes never change; messages may.
"""

from typing import Any, ClassVar


class AckflowError(Exception):
    """Something went wrong in Ackflow."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or type(self).__doc__ or self.code
        self.details = details
        super().__init__(self.message)


class InvalidArgument(AckflowError):
    """An argument is not valid; nothing was changed."""

    code = "invalid_argument"
    status = 400


class UnknownOption(InvalidArgument):
    """An option of that name does not exist."""

    code = "unknown_option"


class PayloadTooLarge(InvalidArgument):
    """A message is larger than the limit; nothing was pushed."""

    code = "payload_too_large"
    status = 413


class BatchTooLarge(InvalidArgument):
    """More messages at once than the server takes."""

    code = "batch_too_large"
    status = 413


class NotFound(AckflowError):
    """There is no such thing here."""

    code = "not_found"
    status = 404


class QueueNotFound(NotFound):
    """There is no queue of that name."""

    code = "queue_not_found"


class GroupNotFound(NotFound):
    """The queue has no group of that name."""

    code = "group_not_found"


class Unauthenticated(AckflowError):
    """The server asks for a token that it knows and that is still good."""

    code = "unauthenticated"
    status = 401


class Forbidden(AckflowError):
    """The token is not good for this."""

    code = "forbidden"
    status = 403


class LeaseLost(AckflowError):
    """The lease is no longer held; the message belongs to someone else or is settled."""

    code = "invalid_lease"
    status = 409


class LeaseExpired(LeaseLost):
    """The lease ran out before the message was settled; it is delivered again."""

    code = "lease_expired"
    status = 410


class AlreadySettled(LeaseLost):
    """The delivery was already settled by another verb."""

    code = "already_settled"


class KeyConflict(AckflowError):
    """The request key was used before with another body; use a new key for a new request."""

    code = "key_conflict"
    status = 409


class VersionConflict(AckflowError):
    """The value changed since it was read; read it again and retry."""

    code = "version_conflict"
    status = 409


class TransactionFailed(AckflowError):
    """One operation was refused, so nothing of the transaction was done."""

    code = "transaction_failed"
    status = 409


class RolledBack(AckflowError):
    """Another message of the atomic batch was refused, so this one was not settled."""

    code = "rolled_back"
    status = 409


class NotMyTurn(AckflowError):
    """Another process does the upkeep of this database."""

    code = "not_my_turn"
    status = 409


class StageMissing(AckflowError):
    """A stage named for publishing does not exist; nothing was published."""

    code = "stage_missing"
    status = 409


class Gone(AckflowError):
    """The messages are no longer stored."""

    code = "gone"
    status = 410


class StorageFull(AckflowError):
    """The disk is full; pushes are refused until there is room, settling goes on."""

    code = "storage_full"
    status = 507


class QueueFull(AckflowError):
    """The queue holds as many messages as it may; nothing was pushed."""

    code = "queue_full"
    status = 429


class NoEncryptionKey(AckflowError):
    """There is no key to encrypt with: set ACKFLOW_ENCRYPTION_KEY to 64 hex digits."""

    code = "no_encryption_key"
    status = 400


class StorageBusy(AckflowError):
    """Another process kept the database locked for too long; try again."""

    code = "storage_busy"
    status = 503


class StorageFailed(AckflowError):
    """The database could not be read or written."""

    code = "storage_failed"
    status = 500


class OutcomeUnknown(StorageFailed):
    """The database was lost while it committed; whether it did cannot be found out."""

    code = "outcome_unknown"


class StorageAway(AckflowError):
    """The database does not answer; nothing was changed, try again."""

    code = "storage_away"
    status = 503


class PayloadSealed(StorageFailed):
    """The payload is encrypted with a key that is not given."""

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
    """The server cannot be reached or answered nothing of use; try again."""

    code = "unavailable"
    status = 503


class CircuitOpen(AckflowError):
    """Circuit breaker is open"""

    code = "circuit_open"
    status = 503


class BodyTooLarge(PayloadTooLarge):
    """The request body is larger than the server takes."""

    code = "body_too_large"


class TooManyWaiting(AckflowError):
    """Too many pops are waiting already; try again later."""

    code = "too_many_waiting"
    status = 429


class Internal(AckflowError):
    """The server failed at this request; its log says why."""

    code = "internal_error"
    status = 500


def by_code(code: str) -> type[AckflowError]:
    """The class that defines a code; AckflowError for an unknown one, as from a newer server."""
    if code not in _CLASSES:  # a dialect's errors may have been imported since the last search
        pending: list[type[AckflowError]] = [AckflowError]
        while pending:
            found = pending.pop()
            _CLASSES.setdefault(found.code, found)
            pending += found.__subclasses__()
    return _CLASSES.get(code, AckflowError)


_CLASSES: dict[str, type[AckflowError]] = {}


def text_of(error: BaseException) -> str:
    """An error as one line: its class, then what it says."""
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
        "internal_error",
    }
)
