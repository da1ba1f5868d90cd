"""Queues and exchanges for a callback, on RabbitMQ, on Ackflow's AMQP, or on a database alone."""

from .client import MessageMiddlewareExchange, MessageMiddlewareQueue
from .delivery import Channel, ack_together
from .eof import EofGate, Repeats

__all__ = [
    "Channel",
    "EofGate",
    "MessageMiddlewareExchange",
    "MessageMiddlewareQueue",
    "Repeats",
    "ack_together",
]
