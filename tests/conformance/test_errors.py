"""Errors: each has a stable code, an HTTP status and a sentence."""

import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

import ackflow
from ackflow import errors
from ackflow.dialects.pushpop.errors import NoLock, WrongLock
from ackflow.errors import AckflowError, RolledBack

# A code is part of the interface: a line here is added, never changed.
TABLE: list[tuple[type[AckflowError], str, int]] = [
    (errors.AckflowError, "error", 500),
    (errors.InvalidArgument, "invalid_argument", 400),
    (errors.UnknownOption, "unknown_option", 400),
    (errors.PayloadTooLarge, "payload_too_large", 413),
    (errors.NotFound, "not_found", 404),
    (errors.QueueNotFound, "queue_not_found", 404),
    (errors.GroupNotFound, "group_not_found", 404),
    (errors.LeaseLost, "invalid_lease", 409),
    (errors.LeaseExpired, "lease_expired", 410),
    (errors.AlreadySettled, "already_settled", 409),
    (WrongLock, "wrong_lock", 400),
    (NoLock, "no_lock", 404),
    (errors.KeyConflict, "key_conflict", 409),
    (errors.VersionConflict, "version_conflict", 409),
    (errors.RolledBack, "rolled_back", 409),
    (errors.NotMyTurn, "not_my_turn", 409),
    (errors.TransactionFailed, "transaction_failed", 409),
    (errors.StageMissing, "stage_missing", 409),
    (errors.Gone, "gone", 410),
    (errors.StorageFull, "storage_full", 507),
    (errors.QueueFull, "queue_full", 429),
    (errors.NoEncryptionKey, "no_encryption_key", 400),
    (errors.PayloadSealed, "payload_sealed", 503),
    (errors.StorageBusy, "storage_busy", 503),
    (errors.StorageAway, "storage_away", 503),
    (errors.OutcomeUnknown, "outcome_unknown", 500),
    (errors.Unavailable, "unavailable", 503),
    (errors.CircuitOpen, "circuit_open", 503),
    (errors.StorageFailed, "storage_failed", 500),
    (errors.SchemaTooNew, "schema_too_new", 500),
    (errors.NotADatabase, "not_a_database", 400),
    (errors.BatchTooLarge, "batch_too_large", 413),
    (errors.BodyTooLarge, "body_too_large", 413),
    (errors.TooManyWaiting, "too_many_waiting", 429),
    (errors.Internal, "internal_error", 500),
    (errors.SessionClosed, "session_closed", 503),
    (errors.SessionForked, "session_forked", 503),
    (errors.Unauthenticated, "unauthenticated", 401),
    (errors.Forbidden, "forbidden", 403),
    (RolledBack, "rolled_back", 409),
]


def family(root: type[AckflowError]) -> Iterator[type[AckflowError]]:
    yield root
    for child in root.__subclasses__():
        yield from family(child)


def ours() -> list[type[AckflowError]]:
    """All errors of the package, whichever modules are imported already."""
    for module in pkgutil.walk_packages(ackflow.__path__, "ackflow."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [e for e in family(AckflowError) if e.__module__.startswith("ackflow")]


@pytest.mark.parametrize(("error", "code", "status"), TABLE)
def test_a_code_and_a_status_never_change(
    error: type[AckflowError], code: str, status: int
) -> None:
    assert (error.code, error.status) == (code, status)


def test_every_error_of_the_module_is_in_the_table() -> None:
    module = {e for e in ours() if e.__module__ == "ackflow.errors"}
    assert module <= {error for error, _, _ in TABLE}


def test_no_two_errors_share_a_code() -> None:
    codes: dict[str, set[str]] = {}
    for error in ours():
        if "code" in vars(error):  # without one of its own, an error is its parent to a caller
            codes.setdefault(error.code, set()).add(error.__name__)
    assert {code: names for code, names in codes.items() if len(names) > 1} == {}


@pytest.mark.parametrize("error", ours())
def test_every_error_has_a_sentence_and_a_status_of_failure(error: type[AckflowError]) -> None:
    sentence = error().message
    assert sentence[0].isupper()
    assert sentence.endswith(".") or sentence == "Circuit breaker is open"
    assert "\n" not in sentence
    assert 400 <= error.status <= 599
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code), "one spelling for all codes"


@pytest.mark.parametrize("error", ours())
def test_an_error_carries_its_message_and_details(error: type[AckflowError]) -> None:
    said = error("the lid is open", lid=3)
    assert str(said) == said.message == "the lid is open"
    assert said.details == {"lid": 3}
    assert str(error()) == error.__doc__


@pytest.mark.parametrize("error", ours())
def test_an_error_crosses_a_process_border_whole(error: type[AckflowError]) -> None:
    again = pickle.loads(pickle.dumps(error("the lid is open", lid=3)))
    assert type(again) is error
    assert (again.message, again.details) == ("the lid is open", {"lid": 3})


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        (errors.UnknownOption, errors.InvalidArgument),
        (errors.PayloadTooLarge, errors.InvalidArgument),
        (errors.QueueNotFound, errors.NotFound),
        (errors.GroupNotFound, errors.NotFound),
        (errors.LeaseExpired, errors.LeaseLost),
        (errors.AlreadySettled, errors.LeaseLost),
    ],
)
def test_a_narrow_error_is_caught_as_the_wide_one(
    child: type[AckflowError], parent: type[AckflowError]
) -> None:
    with pytest.raises(parent):
        raise child()
