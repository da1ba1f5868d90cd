"""The fast pop serves a group only while every option it does not know is at its default."""

from typing import Any

import msgspec
import pytest

from ackflow.options import (
    _PLAIN_ANY,
    DEFAULTS,
    GroupOptions,
    QueueOptions,
    Settings,
    is_plain,
    settings,
)

NATIVE = DEFAULTS["native"]
# A value other than the default for every option that changes what a pop delivers.
CHANGED: dict[str, Any] = {
    "max_wait_seconds": 5.0,
    "retention_seconds": 60.0,
    "ttl_seconds": 60.0,
    "window_seconds": 1.0,
    "policy": "none",
}


class LaterQueueOptions(QueueOptions, frozen=True):
    added_later: int = 0


class LaterGroupOptions(GroupOptions, frozen=True):
    added_later: int = 0


def plain(queue: QueueOptions | None = None, group: GroupOptions | None = None) -> bool:
    queue, group = queue or QueueOptions(), group or GroupOptions()
    return is_plain(queue, group, settings("native", queue, group))


def test_defaults_are_plain() -> None:
    assert plain()
    assert plain(LaterQueueOptions(), LaterGroupOptions())


@pytest.mark.parametrize("kind", [QueueOptions, GroupOptions])
def test_every_option_is_allowed_by_name_or_turns_the_fast_pop_off(kind: type) -> None:
    for name in kind.__struct_fields__:
        if name in _PLAIN_ANY:
            continue
        changed = msgspec.structs.replace(kind(), **{name: CHANGED[name]})
        given = {"queue" if kind is QueueOptions else "group": changed}
        assert not plain(**given), name


def test_every_rule_is_allowed_by_name_or_turns_the_fast_pop_off() -> None:
    for name in set(Settings.__struct_fields__) - _PLAIN_ANY:
        rules = msgspec.structs.replace(NATIVE, **{name: CHANGED[name]})
        assert not is_plain(QueueOptions(), GroupOptions(), rules), name


def test_an_option_that_is_added_later_turns_the_fast_pop_off() -> None:
    assert not plain(queue=LaterQueueOptions(added_later=1))
    assert not plain(group=LaterGroupOptions(added_later=1))


def test_a_group_that_acks_everything_before_is_plain() -> None:
    assert plain(group=GroupOptions(policy="all"))


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [("native", True), ("jetstream", True), ("middleware", True), ("queen", True),
     ("pushpop", True)],
)  # fmt: skip
def test_dialects(dialect: Any, expected: bool) -> None:
    queue, group = QueueOptions(), GroupOptions()
    assert is_plain(queue, group, settings(dialect, queue, group)) is expected
