"""Tables of defaults, of how options override each other, and of the retry rules."""

from typing import Any

import msgspec
import pytest

from ackflow import validate
from ackflow.clock import SECOND
from ackflow.errors import InvalidArgument
from ackflow.options import DEFAULTS, Dialect, GroupOptions, QueueOptions, Settings, settings
from ackflow.retry import (
    Exhausted,
    RetryAt,
    after_expiry,
    after_nack,
    backoff_seconds,
    deliveries_exhausted,
)

NOW = 1_700_000_000 * SECOND


def rules(**changes: Any) -> Settings:
    plain = Settings("shared", "explicit", 300.0, None, None, (), None, 1)
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("dialect", "ordering", "lease", "retry_limit", "max_deliver", "window", "batch"),
    [
        ("native", "shared", 300.0, 3, 20, None, 1),
        ("queen", "ordered", 300.0, 3, None, None, 1),
        ("pushpop", "exclusive", 30.0, None, None, None, 1),
        ("jetstream", "shared", 30.0, None, None, 1000, 1),
        ("middleware", "shared", 10.0, None, None, 10, 10),
        ("rabbitmq", "shared", 30.0, None, None, None, 1),
    ],
)
def test_every_dialect_has_its_defaults(
    dialect: Dialect,
    ordering: str,
    lease: float,
    retry_limit: int | None,
    max_deliver: int | None,
    window: int | None,
    batch: int,
) -> None:
    assert msgspec.structs.asdict(DEFAULTS[dialect]) == {
        "ordering": ordering,
        "policy": "explicit",
        "lease_seconds": lease,
        "retry_limit": retry_limit,
        "max_deliver": max_deliver,
        "backoff": (),
        "max_ack_pending": window,
        "batch": batch,
    }


def test_there_are_no_other_dialects() -> None:
    assert set(DEFAULTS) == {"native", "queen", "pushpop", "jetstream", "middleware", "rabbitmq"}


def test_a_queue_has_its_defaults() -> None:
    options = QueueOptions()
    assert options.history_seconds == 600
    assert options.keep_seconds == 86_400
    assert options.dedup_seconds == 86_400
    assert options.delay_seconds == 0
    assert options.retention_seconds is None
    assert options.max_wait_seconds is None
    assert (options.namespace, options.task) == ("", "")


@pytest.mark.parametrize(
    ("queue", "group", "field", "value"),
    [
        ({}, {}, "lease_seconds", 300.0),
        ({"lease_seconds": 60.0}, {}, "lease_seconds", 60.0),
        ({}, {"lease_seconds": 5.0}, "lease_seconds", 5.0),
        ({"lease_seconds": 60.0}, {"lease_seconds": 5.0}, "lease_seconds", 5.0),
        ({"retry_limit": 7}, {}, "retry_limit", 7),
        ({"retry_limit": None}, {}, "retry_limit", None),
        ({"retry_limit": 7}, {"retry_limit": None}, "retry_limit", None),
        ({"max_deliver": None}, {"max_deliver": 2}, "max_deliver", 2),
        ({"backoff": (1.0, 2.0)}, {}, "backoff", (1.0, 2.0)),
        ({"backoff": (1.0, 2.0)}, {"backoff": ()}, "backoff", ()),
        ({}, {"max_ack_pending": 4}, "max_ack_pending", 4),
        ({}, {"ordering": "exclusive"}, "ordering", "exclusive"),
        ({}, {"policy": "all"}, "policy", "all"),
    ],
)
def test_the_group_is_laid_over_the_queue_over_the_dialect(
    queue: dict[str, Any], group: dict[str, Any], field: str, value: object
) -> None:
    found = settings("native", QueueOptions(**queue), GroupOptions(**group))
    assert getattr(found, field) == value


@pytest.mark.parametrize("dialect", list(DEFAULTS))
def test_without_options_a_group_follows_its_dialect(dialect: Dialect) -> None:
    assert settings(dialect, QueueOptions(), GroupOptions()) == DEFAULTS[dialect]


@pytest.mark.parametrize(
    ("backoff", "deliveries", "seconds"),
    [
        ((), 1, 0),
        ((), 9, 0),
        ((5.0,), 1, 5),
        ((5.0,), 2, 5),
        ((1.0, 10.0, 60.0), 1, 1),
        ((1.0, 10.0, 60.0), 2, 10),
        ((1.0, 10.0, 60.0), 3, 60),
        ((1.0, 10.0, 60.0), 4, 60),
        ((1.0, 10.0, 60.0), 1000, 60),
        ((0.0, 3.0), 1, 0),
        ((3.0, 0.0), 5, 0),
    ],
)
def test_the_pause_follows_the_back_off_and_its_last_step_repeats(
    backoff: tuple[float, ...], deliveries: int, seconds: float
) -> None:
    assert backoff_seconds(rules(backoff=backoff), deliveries) == seconds


@pytest.mark.parametrize(
    ("limit", "deliveries", "is_spent"),
    [
        (None, 1_000_000, False),
        (1, 0, False),
        (1, 1, True),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
    ],
)
def test_deliveries_are_spent_at_their_limit(
    limit: int | None, deliveries: int, is_spent: bool
) -> None:
    assert deliveries_exhausted(rules(max_deliver=limit), deliveries) is is_spent


@pytest.mark.parametrize(
    ("changes", "deliveries", "failures", "delay", "fate"),
    [
        ({}, 1, 1, None, RetryAt(NOW)),
        ({}, 1, 1, 0.0, RetryAt(NOW)),
        ({}, 1, 1, 2.5, RetryAt(NOW + 2_500_000)),
        ({"backoff": (10.0, 20.0)}, 1, 1, None, RetryAt(NOW + 10 * SECOND)),
        ({"backoff": (10.0, 20.0)}, 2, 2, None, RetryAt(NOW + 20 * SECOND)),
        ({"backoff": (10.0, 20.0)}, 2, 1, None, RetryAt(NOW + 20 * SECOND)),
        ({"backoff": (10.0, 20.0)}, 7, 7, None, RetryAt(NOW + 20 * SECOND)),
        ({"backoff": (10.0, 20.0)}, 1, 1, 0.0, RetryAt(NOW)),
        ({"backoff": (10.0, 20.0)}, 9, 9, 1.0, RetryAt(NOW + SECOND)),
        ({"retry_limit": 3}, 2, 2, None, RetryAt(NOW)),
        ({"retry_limit": 3}, 3, 3, None, Exhausted("failed")),
        ({"retry_limit": 3}, 9, 2, None, RetryAt(NOW)),
        ({"retry_limit": 3}, 3, 3, 60.0, Exhausted("failed")),
        ({"retry_limit": 1}, 1, 1, None, Exhausted("failed")),
        ({"retry_limit": 3}, 4, 4, None, Exhausted("failed")),
        ({"max_deliver": 2}, 1, 1, None, RetryAt(NOW)),
        ({"max_deliver": 2}, 2, 1, None, Exhausted("max_deliver")),
        ({"max_deliver": 2}, 2, 2, 60.0, Exhausted("max_deliver")),
        ({"retry_limit": 2, "max_deliver": 2}, 2, 2, None, Exhausted("failed")),
    ],
)
def test_a_failure_leads_to_a_wait_or_a_dead_letter(
    changes: dict[str, Any],
    deliveries: int,
    failures: int,
    delay: float | None,
    fate: RetryAt | Exhausted,
) -> None:
    assert after_nack(rules(**changes), deliveries, failures, NOW, delay) == fate


@pytest.mark.parametrize(
    ("changes", "deliveries", "fate"),
    [
        ({}, 1, RetryAt(NOW)),
        ({"backoff": (10.0, 20.0)}, 1, RetryAt(NOW + 10 * SECOND)),
        ({"backoff": (10.0, 20.0)}, 5, RetryAt(NOW + 20 * SECOND)),
        ({"retry_limit": 1}, 5, RetryAt(NOW)),
        ({"max_deliver": 2}, 1, RetryAt(NOW)),
        ({"max_deliver": 2}, 2, Exhausted("max_deliver")),
        ({"max_deliver": 2, "backoff": (10.0,)}, 2, Exhausted("max_deliver")),
    ],
)
def test_a_lease_that_ran_out_leads_to_a_wait_or_a_dead_letter(
    changes: dict[str, Any], deliveries: int, fate: RetryAt | Exhausted
) -> None:
    assert after_expiry(rules(**changes), deliveries, NOW) == fate


@pytest.mark.parametrize("option", GroupOptions.__struct_fields__)
def test_every_option_of_a_group_has_a_rule(option: str) -> None:
    with pytest.raises(InvalidArgument, match=option):
        validate.group_options({option: object()})
