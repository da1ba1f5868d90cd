"""Publishing, confirms and returns."""

from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError

from .client import Client, scenario


@scenario
def confirm_of_a_routed_message(c: Client) -> None:
    c.declare()
    c.ch.confirm_delivery()
    c.publish("a", "b")
    c.drain()


@scenario
def mandatory_message_is_returned_before_its_confirm(c: Client) -> None:
    c.ch.confirm_delivery()
    c.fails(lambda ch: c.ch.basic_publish("", c.name("none"), b"m", mandatory=True), c.ch)
    c.publish("not mandatory", to="none")
    c.log("confirmed")


@scenario
def return_without_confirms(c: Client) -> None:
    returned: list[Any] = []
    c.ch.add_on_return_callback(
        lambda _, method, properties, body: returned.append(
            (method.reply_code, method.reply_text, method.routing_key, properties.type, body)
        )
    )
    properties = pika.BasicProperties(type="t")
    c.ch.basic_publish("", c.name("none"), b"m", properties, mandatory=True)
    c.pump(lambda: bool(returned), c.connection)
    code, text, key, kind, body = returned[0]
    c.log(code, text, key, kind, body.decode())


@scenario
def publish_to_a_missing_exchange(c: Client) -> None:
    def act(ch: Any) -> None:
        ch.confirm_delivery()
        ch.basic_publish(c.name("none"), "k", b"m")

    c.fails(act)


@scenario
def properties_come_back_as_they_were_sent(c: Client) -> None:
    c.declare()
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1234567890,
        type="t", app_id="a", user_id="guest",
        headers={"text": "ä", "n": 1 << 40, "small": -1, "yes": True, "list": [1, "b", [True]],
                 "nested": {"deep": {"deeper": 1}}, "none": None, "empty": "", "type": "own"},
    )  # fmt: skip
    c.ch.basic_publish("", c.name("q"), b"\x00\xff", sent)
    method, properties, body = c.wait_get()
    c.log(properties == sent, list(body), method.exchange, method.routing_key)
    c.log(sorted((k, str(v)) for k, v in (properties.headers or {}).items()))


@scenario
def message_without_properties_or_body(c: Client) -> None:
    c.declare()
    c.publish("")
    _, properties, body = c.wait_get()
    c.log(properties == pika.BasicProperties(), len(body))


@scenario
def large_body_is_split_into_frames(c: Client) -> None:
    c.declare()
    sent = bytes(range(256)) * 4096
    c.ch.basic_publish("", c.name("q"), sent)
    _, _, body = c.wait_get()
    c.log(len(body), body == sent)


@scenario
def foreign_user_id(c: Client) -> None:
    c.declare()

    def act(ch: Any) -> None:
        ch.confirm_delivery()
        ch.basic_publish("", c.name("q"), b"m", pika.BasicProperties(user_id="other"))

    c.fails(act)


@scenario
def copies_by_header(c: Client) -> None:
    for queue in ("q", "cc", "bcc"):
        c.declare(queue)
    headers = {"CC": [c.name("cc")], "BCC": [c.name("bcc")]}
    c.publish("m", headers=headers)
    for queue in ("q", "cc", "bcc"):
        method, properties, body = c.wait_get(queue)
        c.log(body.decode(), method.routing_key, sorted(properties.headers))


@scenario
def invalid_expiration(c: Client) -> None:
    c.declare()

    def act(ch: Any) -> None:
        ch.confirm_delivery()
        ch.basic_publish("", c.name("q"), b"m", pika.BasicProperties(expiration="soon"))

    try:
        ch = c.connection.channel()
        act(ch)
    except ChannelClosedByBroker as error:
        c.log(error.reply_code)


@scenario
def transaction_commits(c: Client) -> None:
    c.declare("q")
    c.declare("out")
    c.publish("in")
    c.ch.tx_select()
    tag = c.get()
    c.publish("out", to="out")
    c.ch.basic_ack(tag)
    c.ch.tx_commit()
    c.ch = c.connection.channel()
    c.drain("out")
    c.drain("q")


@scenario
def transaction_rolls_back(c: Client) -> None:
    c.declare("q")
    c.declare("out")
    c.publish("in")
    c.ch.tx_select()
    tag = c.get()
    c.publish("out", to="out")
    c.ch.basic_ack(tag)
    c.ch.tx_rollback()
    c.ch.close()
    c.ch = c.connection.channel()
    c.count("q", expected=1)
    c.drain("out")
    c.drain("q")


@scenario
def transaction_with_confirms_is_refused(c: Client) -> None:
    def act(ch: Any) -> None:
        ch.confirm_delivery()
        ch.tx_select()

    c.fails(act)
    c.fails(lambda ch: ch.tx_commit())


@scenario
def unknown_virtual_host(c: Client) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", c._port, virtual_host="none")
    try:
        pika.BlockingConnection(parameters)
    except ProbableAccessDeniedError as error:
        c.log(str(error))


@scenario
def channel_flow(c: Client) -> None:
    c.log(c.ch.flow(True))


@scenario
def qos_with_a_size_is_refused(c: Client) -> None:
    other = c.connect()
    c.fails(lambda ch: ch.basic_qos(prefetch_size=10), other.channel())


@scenario
def direct_reply_to(c: Client) -> None:
    c.declare()
    server = c.connect().channel()
    replies: list[str] = []
    address = "amq.rabbitmq.reply-to"
    c.ch.basic_consume(address, lambda *a: replies.append(a[3].decode()), auto_ack=True)
    c.publish("ask", reply_to=address)
    got = None
    while got is None:
        got, properties, _ = server.basic_get(c.name("q"), auto_ack=True)
    c.log(properties.reply_to.startswith(address + "."))
    server.basic_publish("", properties.reply_to, b"answer")
    c.pump(lambda: bool(replies), c.connection)
    c.log(replies)
    c.fails(lambda ch: ch.basic_consume(address, lambda *_: None))
