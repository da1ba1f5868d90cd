"""The interfaces between a callback, the client and the transports."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from msgspec import Struct

Callback = Callable[..., bool | None]
NAMES = ("channel", "delivery_tag", "redelivered")


class Channel(Protocol):
    """The channel of a delivery, on which it is settled; any thread may call any method.

    After a lost connection, unsettled messages are delivered again on another channel. Settling them
    on the old one has no effect.
    """

    @property
    def is_open(self) -> bool:
        """Whether the connection of this channel still exists."""
        ...

    def basic_ack(self, delivery_tag: int) -> None:
        """Acknowledge a message."""

    def basic_nack(self, delivery_tag: int, requeue: bool = True) -> None:
        """Report a failure: deliver the message again, or dead-letter it without `requeue`."""


def ack_together(held: Sequence[tuple[Channel, int]]) -> None:
    """Acknowledge several deliveries together: on a database in one transaction."""
    by_channel: dict[Any, list[int]] = {}
    for channel, tag in held:
        behind = getattr(channel, "behind", channel)
        if not hasattr(behind, "ack_all"):
            channel.basic_ack(tag)
        elif behind is channel or channel.begin_to_settle(tag):  # type: ignore[attr-defined]
            by_channel.setdefault(behind, []).append(tag)
    with ExitStack() as stack:  # an error on one channel leaves none of the others unsettled
        for behind, tags in by_channel.items():
            stack.callback(behind.ack_all, tags)


class Delivery(Struct, frozen=True):
    body: bytes
    channel: Channel
    delivery_tag: int
    redelivered: bool


class Transport(Protocol):
    """A connection to a broker; only `next` and `start` belong to one thread."""

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None: ...
    def declare_exchange(self, name: str, kind: str) -> None: ...
    def bind(self, queue: str, exchange: str, key: str) -> None: ...
    def publish(self, exchange: str, key: str, body: bytes, *, mandatory: bool) -> None: ...
    def start(self, queue: str, prefetch: int) -> None: ...
    def next(self, seconds: float) -> Delivery | None: ...
    def hold(self, held: int) -> None:
        """Deliver the full prefetch in addition to the messages that the callback holds."""

    def stop(self) -> None: ...
    def delete(self, queue: str) -> None: ...
    def close(self) -> None: ...


def adapted(callback: Callback) -> Callback:
    """Return a callable that passes only the keywords that the callback's signature accepts."""
    try:
        parameters: Sequence[inspect.Parameter] = list(
            inspect.signature(callback).parameters.values()
        )
    except ValueError:  # a builtin
        return lambda body, **_: callback(body)
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return callback
    taken = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY} & set(NAMES)
    return lambda body, **given: callback(body, **{name: given[name] for name in taken})
