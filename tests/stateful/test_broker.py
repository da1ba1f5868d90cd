"""The broker against a model of it: any sequence of verbs does what the specification says.

A failure prints the steps that lead to it and a line that repeats it. Shrinking may take minutes,
so these tests have more time than others.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .changing import ChangingMachine
from .machine import BrokerMachine
from .shared import FileMachine, PostgresMachine

QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize="CI" in os.environ,  # CI must be reproducible; soak and local runs explore
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=4_000, stateful_step_count=120)


@pytest.fixture(autouse=True)
def unhurried_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of upkeep ends by the wall clock, and must not depend on the load here."""
    monkeypatch.setattr("ackflow.broker.upkeep.SLICE_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def small_and_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make bodies of one or two messages small ones, and larger bodies not."""
    monkeypatch.setattr("ackflow.broker.core.push.SMALL_BYTES", 12)


@pytest.fixture(autouse=True)
def short_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeks and purges take a slice for each lane, and one for every few segments."""
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.LANES_AT_ONCE", 1)
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.ROWS_AT_ONCE", 2)


@pytest.mark.timeout(900)
def test_any_sequence_of_verbs_does_what_the_model_says_in_memory() -> None:
    run_state_machine_as_test(BrokerMachine, settings=QUICK)


@pytest.mark.timeout(900)
def test_two_sessions_on_one_file_do_what_the_model_says() -> None:
    run_state_machine_as_test(FileMachine, settings=QUICK)


@pytest.mark.timeout(900)
def test_groups_whose_rules_change_do_what_the_model_says() -> None:
    run_state_machine_as_test(ChangingMachine, settings=QUICK)


@pytest.mark.timeout(900)
def test_two_brokers_on_one_postgres_do_what_the_model_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresMachine, "url", postgres_url)
    monkeypatch.setattr("ackflow.store.postgres.short.SHARED_SECONDS", 0.0)
    run_state_machine_as_test(PostgresMachine, settings=settings(QUICK, max_examples=10))


@pytest.mark.outer
@pytest.mark.timeout(900)
def test_more_sequences_in_two_brokers_on_one_postgres_do_what_the_model_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresMachine, "url", postgres_url)
    monkeypatch.setattr("ackflow.store.postgres.short.SHARED_SECONDS", 0.0)
    run_state_machine_as_test(PostgresMachine, settings=settings(QUICK, max_examples=30))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_sequences_in_two_brokers_on_one_postgres_do_what_the_model_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresMachine, "url", postgres_url)
    monkeypatch.setattr("ackflow.store.postgres.short.SHARED_SECONDS", 0.0)
    run_state_machine_as_test(PostgresMachine, settings=settings(LONG, max_examples=800))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_sequences_do_what_the_model_says_in_memory() -> None:
    run_state_machine_as_test(BrokerMachine, settings=LONG)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_sequences_in_two_sessions_do_what_the_model_says() -> None:
    run_state_machine_as_test(FileMachine, settings=LONG)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_more_sequences_with_changing_rules_do_what_the_model_says() -> None:
    run_state_machine_as_test(ChangingMachine, settings=LONG)
