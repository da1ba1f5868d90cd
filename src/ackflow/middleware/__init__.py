"""Queues and exchanges for a callback, on RabbitMQ, on Ackflow's AMQP, or on a database alone."""

from .client import MessageMiddlewareExchange, MessageMiddlewareQueue
from .eof import EofGate, Repeats
from .transport import Channel, ack_together

__all__ = [
    "Channel",
    "EofGate",
    "MessageMiddlewareExchange",
    "MessageMiddlewareQueue",
    "Repeats",
    "ack_together",
]
