"""The defaults of every dialect, as shown and as applied."""

from typing import Any

import pytest

from ackflow import DEFAULTS, Session, VirtualClock
from ackflow.errors import UnknownOption
from ackflow.options import Dialect

# ordering, lease, retry_limit, max_deliver, window, batch
TABLE: dict[Dialect, tuple[str, float, int | None, int | None, int | None, int]] = {
    "native": ("shared", 300, 3, 20, None, 1),
    "queen": ("ordered", 300, 3, None, None, 1),
    "pushpop": ("exclusive", 30, None, None, None, 1),
    "jetstream": ("shared", 30, None, None, 1000, 1),
    "middleware": ("shared", 10, None, None, 10, 10),
    "rabbitmq": ("shared", 30, None, None, None, 1),
}


def test_the_table_names_every_dialect() -> None:
    assert set(TABLE) == set(DEFAULTS)


@pytest.mark.parametrize("dialect", TABLE)
def test_a_group_born_by_its_first_pop_has_the_defaults_of_its_dialect(
    q: Session, dialect: Dialect
) -> None:
    q.pop("q", group="g", dialect=dialect)
    stats = q.group_stats("q", "g")
    shown = stats.settings
    assert stats.dialect == dialect
    assert (
        shown.ordering,
        shown.lease_seconds,
        shown.retry_limit,
        shown.max_deliver,
        shown.max_ack_pending,
        shown.batch,
    ) == TABLE[dialect]
    assert (shown.policy, shown.backoff) == ("explicit", ())


@pytest.mark.parametrize("dialect", TABLE)
def test_a_group_made_by_hand_has_the_defaults_of_its_dialect(q: Session, dialect: Dialect) -> None:
    assert q.group("q", "g", dialect=dialect).settings == DEFAULTS[dialect]


def test_a_group_made_by_hand_without_a_dialect_is_native(q: Session) -> None:
    assert q.group("q", "g").settings == DEFAULTS["native"]


@pytest.mark.parametrize("dialect", TABLE)
def test_a_lease_lasts_as_long_as_the_table_says(
    q: Session, clock: VirtualClock, dialect: Dialect
) -> None:
    q.push("q", 1)
    seconds = TABLE[dialect][1]
    q.pop("q", group="g", dialect=dialect)
    clock.advance(seconds - 0.000001)
    assert not q.pop("q", group="g", dialect=dialect)
    clock.advance(0.000001)
    assert len(q.pop("q", group="g", dialect=dialect)) == 1


@pytest.mark.parametrize("dialect", TABLE)
def test_a_pop_brings_as_many_as_the_table_says(q: Session, dialect: Dialect) -> None:
    q.push("q", list(range(50)))
    assert len(q.pop("q", group="g", dialect=dialect)) == TABLE[dialect][5]


@pytest.mark.parametrize("dialect", TABLE)
def test_a_message_may_fail_as_often_as_the_table_says(q: Session, dialect: Dialect) -> None:
    q.push("q", 1)
    limit = TABLE[dialect][2]
    for _ in range(limit or 40):
        q.pop("q", group="g", dialect=dialect)[0].nack()
    assert len(q.dead_letters("q", kind="failed").items) == (1 if limit else 0)


@pytest.mark.parametrize("dialect", TABLE)
def test_a_message_may_be_delivered_as_often_as_the_table_says(
    q: Session, clock: VirtualClock, dialect: Dialect
) -> None:
    q.push("q", 1)
    limit = TABLE[dialect][3]
    for _ in range(limit or 40):
        assert len(q.pop("q", group="g", dialect=dialect)) == 1
        clock.advance(300)
    assert bool(q.pop("q", group="g", dialect=dialect)) is (limit is None)
    assert len(q.dead_letters("q", kind="max_deliver").items) == (1 if limit else 0)


@pytest.mark.parametrize("dialect", TABLE)
def test_a_pop_that_names_no_batch_gets_as_many_as_its_group_says(
    q: Session, dialect: Dialect
) -> None:
    q.push("q", list(range(20)))
    q.group("q", "g", dialect=dialect)
    assert len(q.pop("q", group="g")) == TABLE[dialect][5]
    assert len(q.pop("q", group="new", dialect=dialect)) == TABLE[dialect][5]


@pytest.mark.parametrize("dialect", TABLE)
def test_as_much_may_be_leased_at_once_as_the_table_says(q: Session, dialect: Dialect) -> None:
    for partition in ("a", "b"):
        q.push("q", list(range(1_500)), partition=partition)
    ordering, window = TABLE[dialect][0], TABLE[dialect][4]
    given = 0
    while batch := q.pop("q", group="g", batch=800, dialect=dialect):
        given += len(batch)
    at_once = {"shared": 3_000, "ordered": 1_600, "exclusive": 800}[ordering]
    assert given == (window or at_once)


@pytest.mark.parametrize("dialect", TABLE)
def test_the_options_of_a_group_go_before_the_queue_and_the_queue_before_the_dialect(
    q: Session, dialect: Dialect
) -> None:
    q.configure("q", lease_seconds=77, retry_limit=8, max_deliver=9, backoff=[1, 2])
    settings = q.group("q", "g", dialect=dialect, lease_seconds=5, max_deliver=None).settings
    assert (settings.lease_seconds, settings.max_deliver) == (5, None)
    assert (settings.retry_limit, settings.backoff) == (8, (1, 2))
    assert settings.ordering == TABLE[dialect][0]


def test_a_changed_queue_changes_its_groups_where_they_say_nothing(q: Session) -> None:
    q.group("q", "told", lease_seconds=5)
    q.group("q", "untold")
    q.configure("q", lease_seconds=77)
    assert q.group_stats("q", "told").settings.lease_seconds == 5
    assert q.group_stats("q", "untold").settings.lease_seconds == 77


@pytest.mark.parametrize("option", ["retry_limit", "max_deliver"])
@pytest.mark.parametrize("unlimited", [None, -1])
def test_no_limit_may_be_written_in_two_ways(
    q: Session, option: str, unlimited: int | None
) -> None:
    given: dict[str, Any] = {option: unlimited}
    q.group("q", "g", **given)
    assert getattr(q.group_stats("q", "g").settings, option) is None


QUEUE_DEFAULTS: dict[str, Any] = {
    "history_seconds": 600,
    "delay_seconds": 0,
    "max_wait_seconds": None,
    "retention_seconds": None,
    "keep_seconds": 86_400,
    "dedup_seconds": 86_400,
    "namespace": "",
    "task": "",
    "max_size": None,
    "ttl_seconds": None,
    "window_seconds": 0,
    "priority": 0,
    "encrypted": False,
}


@pytest.mark.parametrize(("option", "value"), QUEUE_DEFAULTS.items())
def test_a_queue_has_its_defaults(q: Session, option: str, value: Any) -> None:
    q.push("q", 1)
    assert getattr(q.queue_stats("q").options, option) == value


def test_configure_changes_only_the_options_given(q: Session) -> None:
    q.configure("q", delay_seconds=3, namespace="n")
    options = q.configure("q", keep_seconds=5)
    assert (options.delay_seconds, options.namespace, options.keep_seconds) == (3, "n", 5)


def test_an_option_that_does_not_exist_is_refused(q: Session) -> None:
    with pytest.raises(UnknownOption, match="retry_limit"):
        q.configure("q", retry_limits=3)


def test_a_message_has_the_default_partition_priority_and_group(q: Session) -> None:
    q.push("q", 1)
    (message,) = q.pop("q")
    assert (message.partition, message.priority, message.group) == ("Default", 0, "__QUEUE_MODE__")
