"""What clients see of Ackflow equals what they see of RabbitMQ, except where a table says why not.

The traces of RabbitMQ are recorded in traces.json; the outer ring compares them with a real server.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

import ackflow

from ..postgres.server import Server, empty
from .conftest import Amqp
from .real import RabbitMQ, found
from .record import TRACES
from .scenarios import SCENARIOS, run

RECORDED: dict[str, Any] = json.loads(TRACES.read_text())

INVALID = "PRECONDITION_FAILED - invalid arg '{}' for queue '{}' in vhost '/': {}"
# What Ackflow answers instead: by scenario the reason, and the lines of the trace that differ.
DIFFERENT: dict[str, tuple[str, dict[int, Any]]] = {
    "declare_again_with_other_arguments": (
        "the text says which values are valid, not Erlang's name of the mistake",
        {
            2: [
                "channel", 406,
                INVALID.format(
                    "x-max-priority", "declare_again_with_other_arguments.p",
                    "it must be an integer from 1 to 255",
                ),
            ],
            3: [
                "channel", 406,
                INVALID.format(
                    "x-message-ttl", "declare_again_with_other_arguments.p",
                    "it must be an integer from 0 to 315360000000",
                ),
            ],
        },
    ),
    "length_drops_the_lowest_priority": (
        "RabbitMQ drops what it would deliver next, which is the highest priority",
        {1: ["drained", ["high", "middle"]]},
    ),
    "released_messages_of_a_quorum_queue_count_as_delivered": (
        "a message whose consumer closes or dies has not failed; x-delivery-limit counts nacks",
        {4: ["count", 1], 5: ["count", 0]},
    ),
    "unknown_argument": (
        "an argument that has no effect is refused, so that nothing depends on it",
        {
            0: [
                "channel", 406,
                INVALID.format(
                    "x-unknown", "unknown_argument.q", "Ackflow does not support this argument"
                ),
            ]
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ackflow.connect(":memory:") as session:
        running = Amqp(session)
        yield running.port
        running.stop()


def plain(trace: Any) -> Any:
    """A trace as JSON writes it."""
    return json.loads(json.dumps(trace))


def test_there_are_at_least_sixty_scenarios_and_all_are_recorded() -> None:
    assert len(SCENARIOS) >= 60
    assert set(RECORDED) == set(SCENARIOS)
    assert set(DIFFERENT) <= set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_ackflow_does_what_rabbitmq_does(port: int, name: str) -> None:
    expected = list(RECORDED[name])
    for line, other in DIFFERENT.get(name, ("", {}))[1].items():
        assert expected[line] != other, "the table names a difference that there is not"
        expected[line] = other
    assert plain(run(port, name)) == expected


@pytest.fixture(scope="module")
def port_on_postgres(postgres_server: Server) -> Iterator[int]:
    empty(postgres_server.url)
    with ackflow.connect(postgres_server.url) as session:
        running = Amqp(session)
        yield running.port
        running.stop()


# Another broker on the same database would not know which consumer is active.
ONE_BROKER = {
    "single_active_consumer",
    "the_next_active_consumer_gets_what_the_last_one_held_first",
    "cancelled_active_consumer_keeps_what_it_holds",
}


@pytest.mark.outer
@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - ONE_BROKER))
def test_ackflow_on_postgresql_does_what_rabbitmq_does(port_on_postgres: int, name: str) -> None:
    test_ackflow_does_what_rabbitmq_does(port_on_postgres, name)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if not found():
        assert os.environ.get("CI") != "true", "CI needs rabbitmq-server: run `make setup`"
        pytest.skip("rabbitmq-server is not installed")
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.stop()


@pytest.mark.outer
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_recorded_traces_are_those_of_rabbitmq(real: RabbitMQ, name: str) -> None:
    assert plain(run(real.port, name)) == RECORDED[name]
