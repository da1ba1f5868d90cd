"""PushPop's errors, and how it spells those of the core."""

from ...errors import AckflowError, LeaseExpired, LeaseLost


class WrongLock(LeaseLost):
    """The queue is locked under another lock id; that lock is unchanged."""

    code = "wrong_lock"
    status = 400


class NoLock(LeaseLost):
    """The queue is not locked."""

    code = "no_lock"
    status = 404


_SPELLING = {
    LeaseExpired.code: ("LOCK_EXPIRED", "Lock has expired"),
    NoLock.code: ("LOCK_NOT_FOUND", "No active lock found"),
    WrongLock.code: ("INVALID_LOCK_ID", "Invalid lock_id"),
}


def spelling(error: AckflowError) -> tuple[str, str]:
    """Code and message of an error as PushPop spells them; Ackflow's own for all others."""
    return _SPELLING.get(error.code, (error.code, error.message))
