"""Publications that still arrive wait for each other, and those of other clients wait for nothing."""

import pytest

from ackflow.dialects.rabbitmq import publishing
from ackflow.dialects.rabbitmq.publishing import GATHER_MOST, Arrivals

from .conftest import Amqp
from .test_fuzz import test_what_was_published_before_the_end_is_stored as published_before_the_end


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    monkeypatch.setattr(publishing, "GATHER_SECONDS", 1e9)
    pipelining = Arrivals()
    pipelining.begin(2)
    return pipelining


def test_a_client_that_waits_for_each_confirm_waits_for_nothing_else() -> None:
    arrivals = Arrivals()
    assert not arrivals.more(1)
    arrivals.begin(1)
    assert not arrivals.more(1)


def test_a_window_is_gathered_until_a_turn_brings_no_more(arrivals: Arrivals) -> None:
    assert [arrivals.more(n) for n in (1, 1, 4, 9, 9)] == [True, True, True, True, False]
    arrivals.begin(9)
    assert arrivals.more(1)


def test_what_is_gathered_is_bounded(arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not arrivals.more(GATHER_MOST)
    arrivals.begin(GATHER_MOST)
    monkeypatch.setattr(publishing, "GATHER_SECONDS", 0)
    assert not arrivals.more(1)


def test_nothing_is_gathered_when_the_client_is_gone(arrivals: Arrivals) -> None:
    arrivals.end()
    assert not arrivals.more(1)
    arrivals.begin(2)
    assert not arrivals.more(1)


@pytest.mark.parametrize("closes", [True, False])
def test_publications_that_are_gathered_when_the_connection_ends_are_stored(
    amqp: Amqp, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr(Arrivals, "more", lambda self, _: not self._ended)
    published_before_the_end(amqp, closes)
