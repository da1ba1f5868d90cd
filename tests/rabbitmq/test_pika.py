"""Stock pika against Ackflow: messages, leases, dead letters, and the other protocols beside it."""

import socket
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, ProbableAuthenticationError
from pika.exceptions import UnroutableError as Unroutable

import ackflow
from ackflow.broker import access_tokens

from .conftest import Amqp

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def get(channel: Any, queue: str, **options: Any) -> tuple[Any, Any, bytes]:
    """Fetch a message, which must be there."""
    method, properties, body = channel.basic_get(queue, **options)
    assert method is not None, f"queue {queue} is empty"
    return method, properties, body


def bodies(channel: Any, queue: str) -> list[bytes]:
    """Everything that is ready in a queue, acknowledged."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def test_a_confirmed_message_is_fetched_with_its_properties(channel: Any) -> None:
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1234567890,
        type="t", app_id="a",
        headers={"text": "x", "n": 1 << 40, "yes": True, "list": [1, "b"], "type": "own",
                 "nested": {"deep": {"deeper": 1}}, "none": None, "empty": ""},
    )  # fmt: skip
    channel.basic_publish("", "q", b"\x00\xff body", sent)
    method, properties, body = get(channel, "q")
    assert body == b"\x00\xff body"
    assert properties == sent
    assert (method.exchange, method.routing_key, method.redelivered) == ("", "q", False)


def test_json_pushed_by_a_session_is_consumed_over_amqp_and_the_other_way(
    amqp: Amqp, channel: Any
) -> None:
    channel.queue_declare("q", durable=True)
    amqp.session.push("q", {"n": 1}, headers={"trace": "t", "correlation-id": "c"})
    _, properties, body = get(channel, "q", auto_ack=True)
    assert (body, properties.content_type) == (b'{"n":1}', "application/json")
    assert (properties.headers, properties.correlation_id) == ({"trace": "t"}, "c")
    json = pika.BasicProperties(content_type="application/json", headers={"k": "v"})
    channel.confirm_delivery()
    channel.basic_publish("", "q", b'{"n": 2}', json)
    channel.basic_publish("", "q", b"\xff", PERSISTENT)
    one, two = (amqp.session.pop("q")[0] for _ in range(2))
    assert (one.data, one.headers["k"], one.headers["content-type"]) == (
        {"n": 2}, "v", "application/json",
    )  # fmt: skip
    assert two.data == b"\xff"


def test_a_requeued_message_keeps_its_place_and_is_flagged(channel: Any) -> None:
    channel.queue_declare("q", durable=True)
    for n in range(3):
        channel.basic_publish("", "q", b"%d" % n)
    first, _, _ = get(channel, "q")
    channel.basic_nack(first.delivery_tag, requeue=True)
    again, _, body = get(channel, "q")
    assert (body, again.redelivered) == (b"0", True)
    assert [get(channel, "q")[2] for _ in range(2)] == [b"1", b"2"]


def test_a_closed_channel_gives_back_what_it_holds_uncounted(
    connect: Callable[..., Any], amqp: Amqp
) -> None:
    one, two = connect().channel(), connect().channel()
    one.queue_declare("q", durable=True)
    one.basic_publish("", "q", b"m")
    get(one, "q")
    one.close()
    method, _, _ = get(two, "q")
    assert method.redelivered
    two.close()
    (delivery,) = amqp.session.pop("q")
    assert (delivery.deliveries, delivery.failures, delivery.redelivered) == (1, 0, True)


def test_a_lost_connection_gives_back_what_it_holds_at_once(
    connect: Callable[..., Any], channel: Any
) -> None:
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"m")
    other = connect()
    get(other.channel(), "q")
    other._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # without a word of AMQP
    channel.basic_qos(prefetch_count=1)
    for method, _, body in channel.consume("q", inactivity_timeout=10):
        assert (method is not None, body) == (True, b"m")
        assert method.redelivered
        break


def test_a_rejected_message_is_a_dead_letter_and_goes_to_the_exchange(
    amqp: Amqp, channel: Any
) -> None:
    channel.exchange_declare("dlx", "fanout", durable=True)
    channel.queue_declare("dead", durable=True)
    channel.queue_bind("dead", "dlx")
    channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    channel.basic_publish("", "q", b"m", pika.BasicProperties(headers={"n": 1}))
    method, _, _ = get(channel, "q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = get(channel, "dead")
    assert (body, method.exchange, method.routing_key) == (b"m", "dlx", "q")
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", 1)
    assert properties.headers["n"] == 1
    assert properties.headers["x-first-death-queue"] == "q"
    (letter,) = amqp.session.dead_letters("q")
    assert (letter.kind, letter.raw) == ("rejected", b"m")


def test_a_message_over_the_delivery_limit_goes_to_the_dead_letters(
    amqp: Amqp, channel: Any
) -> None:
    limit = {"x-delivery-limit": 2, "x-queue-type": "quorum"}
    channel.queue_declare("q", durable=True, arguments=limit)
    channel.basic_publish("", "q", b"poison")
    seen = 0
    while (got := channel.basic_get("q"))[0] is not None:
        seen += 1
        channel.basic_nack(got[0].delivery_tag, requeue=True)
    assert seen == 3
    assert [letter.kind for letter in amqp.session.dead_letters("q")] == ["failed"]


def test_an_expired_message_goes_to_the_dead_letter_exchange_without_a_consumer(
    channel: Any,
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "after"}
    channel.queue_declare("after", durable=True)
    channel.queue_declare("delay", durable=True, arguments=arguments)
    channel.queue_declare("ttl", durable=True, arguments={**arguments, "x-message-ttl": 50})
    channel.basic_publish("", "delay", b"own", pika.BasicProperties(expiration="50"))
    channel.basic_publish("", "ttl", b"of the queue")
    found = {}
    for method, properties, body in channel.consume("after", inactivity_timeout=10):
        assert method is not None, found
        found[body] = properties.headers["x-death"][0]["reason"], properties.expiration
        if len(found) == 2:
            break
    assert found == {b"own": ("expired", None), b"of the queue": ("expired", None)}


def test_priorities_and_the_maximum_length(channel: Any) -> None:
    channel.queue_declare("p", durable=True, arguments={"x-max-priority": 5})
    for priority in (0, 9, 3, None, 5):
        channel.basic_publish(
            "", "p", b"%d" % (priority or 0), pika.BasicProperties(priority=priority)
        )
    assert bodies(channel, "p") == [b"9", b"5", b"3", b"0", b"0"]
    channel.queue_declare("short", durable=True, arguments={"x-max-length": 2})
    for n in range(5):
        channel.basic_publish("", "short", b"%d" % n)
    assert bodies(channel, "short") == [b"3", b"4"]
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=full)
    channel.confirm_delivery()
    channel.basic_publish("", "full", b"0")
    with pytest.raises(NackError):
        channel.basic_publish("", "full", b"1")


def test_exchanges_route_by_key_pattern_and_headers(channel: Any) -> None:
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"x.{kind}", kind)
    bindings = [
        ("a", "x.direct", "k", None), ("b", "x.direct", "k", None), ("a", "x.fanout", "", None),
        ("a", "x.topic", "*.red.#", None), ("b", "x.topic", "#", None),
        ("a", "x.headers", "", {"x-match": "any", "n": 1, "s": "t"}),
        ("b", "x.headers", "", {"x-match": "all", "n": 1, "s": "t"}),
    ]  # fmt: skip
    for queue in ("a", "b"):
        channel.queue_declare(queue)
    for queue, exchange, key, arguments in bindings:
        channel.queue_bind(queue, exchange, key, arguments)
    channel.basic_publish("x.direct", "k", b"direct")
    channel.basic_publish("x.direct", "other", b"lost")
    channel.basic_publish("x.fanout", "any", b"fanout")
    channel.basic_publish("x.topic", "a.red", b"topic 1")
    channel.basic_publish("x.topic", "red", b"topic 2")
    channel.basic_publish("x.headers", "", b"h1", pika.BasicProperties(headers={"n": 1}))
    channel.basic_publish("x.headers", "", b"h2", pika.BasicProperties(headers={"n": 1, "s": "t"}))
    assert bodies(channel, "a") == [b"direct", b"fanout", b"topic 1", b"h1", b"h2"]
    assert bodies(channel, "b") == [b"direct", b"topic 1", b"topic 2", b"h2"]
    channel.exchange_bind("x.fanout", "x.direct", "through")
    channel.basic_publish("x.direct", "through", b"e2e")
    assert bodies(channel, "a") == [b"e2e"]
    channel.confirm_delivery()
    with pytest.raises(Unroutable):
        channel.basic_publish("x.direct", "nobody", b"", mandatory=True)


def test_a_transaction_is_all_or_nothing(channel: Any) -> None:
    channel.queue_declare("q")
    channel.queue_declare("out")
    channel.basic_publish("", "q", b"in")
    channel.tx_select()
    for commits in (False, True):
        method, _, _ = get(channel, "q")
        channel.basic_publish("", "out", b"out")
        channel.basic_ack(method.delivery_tag)
        assert channel.queue_declare("out", passive=True).method.message_count == 0
        if commits:
            channel.tx_commit()
        else:
            channel.tx_rollback()
            channel.basic_recover(requeue=True)
    assert bodies(channel, "out") == [b"out"]
    assert bodies(channel, "q") == []


def test_an_unsupported_argument_is_refused(channel: Any) -> None:
    with pytest.raises(ChannelClosedByBroker, match="x-max-length-bytes") as refused:
        channel.queue_declare("q", arguments={"x-max-length-bytes": 5})
    assert refused.value.reply_code == 406


def test_an_exclusive_queue_is_locked_and_goes_with_its_connection(
    connect: Callable[..., Any], amqp: Amqp
) -> None:
    owner, other = connect(), connect()
    name = owner.channel().queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    with pytest.raises(ChannelClosedByBroker) as locked:
        other.channel().basic_get(name)
    assert locked.value.reply_code == 405
    owner.close()
    with pytest.raises(ChannelClosedByBroker) as gone:
        other.channel().queue_declare(name, passive=True)
    assert gone.value.reply_code == 404


def test_consumers_share_a_queue_and_a_deleted_queue_cancels_them(
    connect: Callable[..., Any],
) -> None:
    connections = [connect(), connect()]
    seen: list[list[bytes]] = [[], []]
    cancelled: list[bool] = []
    admin = connect().channel()
    admin.queue_declare("q", durable=True)
    for at, connection in enumerate(connections):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)

        def got(ch: Any, method: Any, _: Any, body: bytes, at: int = at) -> None:
            seen[at].append(body)
            ch.basic_ack(method.delivery_tag)

        channel.add_on_cancel_callback(lambda _: cancelled.append(True))
        channel.basic_consume("q", got)
    for n in range(20):
        admin.basic_publish("", "q", b"%d" % n)
    for _ in range(200):
        for connection in connections:
            connection.process_data_events(0.01)
        if sum(map(len, seen)) == 20:
            break
    assert sorted(seen[0] + seen[1], key=int) == [b"%d" % n for n in range(20)]
    assert all(seen)
    admin.queue_delete("q")
    for _ in range(500):
        for connection in connections:
            connection.process_data_events(0.01)
        if len(cancelled) == 2:
            break
    assert len(cancelled) == 2


def test_tokens_are_required_and_cover_queues_and_exchanges() -> None:
    with ackflow.connect(":memory:") as session:
        secret = session.broker.do(  # type: ignore[union-attr]
            access_tokens.create, True, "orders", [access_tokens.grant("read-write:orders*")], None
        )
        running = Amqp(session)
        try:
            for user, password in (("guest", "guest"), ("orders", "wrong"), ("other", secret)):
                with pytest.raises(ProbableAuthenticationError):
                    running.connect(user, password)
            connection = running.connect("orders", secret)
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"m")
            assert get(channel, "orders")[2] == b"m"
            for refused in (
                lambda ch: ch.queue_declare("invoices"),
                lambda ch: ch.basic_publish("", "invoices", b""),
                lambda ch: ch.queue_bind("orders", "amq.fanout"),
                lambda ch: ch.queue_delete("orders"),
                lambda ch: ch.queue_declare("orders2", arguments={"x-dead-letter-exchange": ""}),
            ):
                channel = connection.channel()
                channel.confirm_delivery()
                with pytest.raises(ChannelClosedByBroker) as closed:
                    refused(channel)
                assert closed.value.reply_code == 403
            connection.close()
        finally:
            running.stop()


def test_an_error_of_a_channel_does_not_undo_what_came_before(
    connect: Callable[..., Any], channel: Any
) -> None:
    channel.queue_declare("q")
    other = connect().channel()
    for n in range(50):
        other._impl.basic_publish("", "q", b"%d" % n)
    wrong = pika.BasicProperties(expiration="soon")
    other._impl.basic_publish("", "q", b"wrong", wrong)
    other._impl.basic_publish("", "q", b"after")
    with pytest.raises(ChannelClosedByBroker):
        other.queue_declare("q", passive=True)
    assert len(bodies(channel, "q")) == 50


def test_large_messages_are_delivered_in_small_batches(channel: Any) -> None:
    channel.queue_declare("q")
    sent = [b"%d" % n * 1_000_000 for n in range(10)]
    for body in sent:
        channel.basic_publish("", "q", body)
    seen = []
    for method, _, body in channel.consume("q", inactivity_timeout=20):
        assert method is not None
        channel.basic_ack(method.delivery_tag)
        seen.append(body)
        if len(seen) == len(sent):
            break
    assert seen == sent


def test_headers_too_large_for_a_frame_are_left_out(
    amqp: Amqp, connect: Callable[..., Any]
) -> None:
    channel = connect(frame_max=4096).channel()
    channel.queue_declare("q")
    amqp.session.push("q", 1, headers={"large": "x" * 5000, "type": "t"})
    _, properties, body = get(channel, "q")
    assert (body, properties.type, properties.headers) == (b"1", "t", None)


def test_a_transaction_that_cannot_commit_changes_nothing(channel: Any) -> None:
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"in")
    other = channel.connection.channel()
    other.tx_select()
    method, _, _ = get(other, "q")
    other.basic_publish("", "q", b"out")
    other.basic_publish("missing", "k", b"lost")
    other.basic_ack(method.delivery_tag)
    with pytest.raises(ChannelClosedByBroker) as closed:
        other.tx_commit()
    assert closed.value.reply_code == 404
    again, _, body = get(channel, "q")
    assert (body, again.redelivered) == (b"in", True)
    assert channel.basic_get("q")[0] is None
