"""Consumers that had no room, and get it again: nothing waits for the next message of its queue."""

import time
from collections.abc import Callable
from typing import Any

WAIT = 30.0  # a consumer that is not woken looks again after a minute


def pump(channel: Any, condition: Callable[[], bool]) -> bool:
    """Let pika handle what arrives, until a condition holds."""
    deadline = time.monotonic() + WAIT
    while not condition() and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    return condition()


def consume(channel: Any, queue: str, seen: list[tuple[str, int]]) -> None:
    channel.basic_consume(
        queue, lambda _, m, __, body: seen.append((body.decode(), m.delivery_tag))
    )


def test_a_message_that_came_while_the_channel_was_full_is_delivered_after_an_ack(
    channel: Any,
) -> None:
    seen: list[tuple[str, int]] = []
    channel.basic_qos(prefetch_count=1, global_qos=True)
    for queue in ("a", "b"):
        channel.queue_declare(queue)
        consume(channel, queue, seen)
    channel.basic_publish("", "a", b"first")
    assert pump(channel, lambda: len(seen) == 1)
    channel.basic_publish("", "b", b"second")
    channel.queue_declare("b", passive=True)
    channel.connection.process_data_events(0.2)
    assert [body for body, _ in seen] == ["first"]
    channel.basic_ack(seen[0][1])
    assert pump(channel, lambda: len(seen) == 2), "the other consumer was not woken"


def test_consumers_that_share_a_prefetch_get_all_of_it_again(channel: Any) -> None:
    channel.basic_qos(prefetch_count=3, global_qos=True)
    seen: list[tuple[str, int]] = []
    for queue in ("a", "b"):
        channel.queue_declare(queue)
        consume(channel, queue, seen)
    for round in range(1, 11):
        for number in range(3):
            channel.basic_publish("", "a" if round % 2 else "b", f"{round}.{number}".encode())
        assert pump(channel, lambda n=3 * round: len(seen) >= n), f"round {round}"  # type: ignore[misc]
        channel.basic_ack(seen[-1][1], multiple=True)


def test_a_consumer_gets_what_came_while_the_flow_was_off(channel: Any) -> None:
    channel.queue_declare("q")
    seen: list[tuple[str, int]] = []
    consume(channel, "q", seen)
    channel.connection.process_data_events(0.1)
    channel.flow(False)
    channel.basic_publish("", "q", b"late")
    channel.queue_declare("q", passive=True)
    channel.connection.process_data_events(0.2)
    assert seen == []
    channel.flow(True)
    assert pump(channel, lambda: len(seen) == 1), "the consumer was not woken"


def test_acknowledgements_are_settled_though_no_pop_follows(channel: Any, amqp: Any) -> None:
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"only")
    seen: list[tuple[str, int]] = []
    consume(channel, "q", seen)
    assert pump(channel, lambda: len(seen) == 1)
    channel.basic_ack(seen[0][1])

    def settled() -> bool:
        return amqp.session.group_stats("q").counts.leased == 0

    assert pump(channel, settled)
