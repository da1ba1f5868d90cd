"""The broker against a model of it: any sequence of verbs does what the specification says."""

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import BrokerMachine, FileMachine

QUICK = settings(
    max_examples=int(os.environ.get("EX", 60)),
    stateful_step_count=int(os.environ.get("STEPS", 40)),
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=3_000, stateful_step_count=80)


def run(machine: type[BrokerMachine], how: settings) -> None:
    run_state_machine_as_test(machine, settings=how)


def test_any_sequence_of_verbs_does_what_the_model_says_in_memory() -> None:
    run(BrokerMachine, QUICK)


def test_two_sessions_on_one_file_do_what_the_model_says() -> None:
    run(FileMachine, QUICK)
