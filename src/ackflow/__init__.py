"""Ackflow: a message queue that knows what became of every message.

import ackflow
q = ackflow.connect("orders.db")
q.push("orders", [{"id": 1}, {"id": 2}], partition="eu")
for message in q.pop("orders", group="billing", batch=100, wait=20):
    handle(message.data)
    message.ack()
"""

from . import errors, model
from .broker.settle import Verdict
from .clock import VirtualClock
from .codec import Item
from .delivery import Batch, Message, Receipt, Refusal, Settled
from .errors import AckflowError, AlreadySettled, LeaseExpired, LeaseLost
from .policy import DEFAULTS, GroupOptions, QueueOptions
from .session import Session, connect
from .transaction import Transaction

__version__ = "0.1.0"

__all__ = [
    "DEFAULTS",
    "AckflowError",
    "AlreadySettled",
    "Batch",
    "GroupOptions",
    "Item",
    "LeaseExpired",
    "LeaseLost",
    "Message",
    "QueueOptions",
    "Receipt",
    "Refusal",
    "Session",
    "Settled",
    "Transaction",
    "Verdict",
    "VirtualClock",
    "connect",
    "errors",
    "model",
]
