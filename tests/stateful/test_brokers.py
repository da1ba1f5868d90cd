"""Three brokers on one PostgreSQL schema do what the model says, and none uses what is outdated."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .brokers import BrokersMachine

QUICK = settings(
    max_examples=8,
    stateful_step_count=30,
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def machine(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep does not depend on the load, and sweeps take several slices."""
    monkeypatch.setattr(BrokersMachine, "url", postgres_url)
    monkeypatch.setattr("ackflow.broker.upkeep.SLICE_SECONDS", 60.0)
    monkeypatch.setattr("ackflow.broker.core.push.SMALL_BYTES", 12)
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.LANES_AT_ONCE", 1)
    monkeypatch.setattr("ackflow.broker.core.upkeep.sweeps.ROWS_AT_ONCE", 2)
    # A queue that two brokers use is passed on with a baton, also where a test takes long.
    monkeypatch.setattr("ackflow.store.postgres.store.MET_SECONDS", 3_600.0)
    # Each broker tries a single round trip, whoever wrote last.
    monkeypatch.setattr("ackflow.store.postgres.short.SHARED_SECONDS", 0.0)


@pytest.mark.timeout(900)
def test_brokers_in_turn_never_use_what_another_one_has_changed() -> None:
    run_state_machine_as_test(BrokersMachine, settings=QUICK)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_brokers_in_turn_for_long_never_use_what_another_one_has_changed() -> None:
    long = settings(QUICK, max_examples=int(os.environ.get("ACKFLOW_EXAMPLES", "3000")),
                    stateful_step_count=60)  # fmt: skip
    run_state_machine_as_test(BrokersMachine, settings=long)
