"""Ackflow: a message queue that accounts for every message.

import ackflow
q = ackflow.connect("orders.db")
q.push("orders", [{"id": 1}, {"id": 2}], partition="eu")
for message in q.pop("orders", group="billing", batch=100, wait=20):
    handle(message.data)
    message.ack()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors, model
from .broker.requests import Verdict
from .clock import VirtualClock
from .errors import AckflowError, AlreadySettled, LeaseExpired, LeaseLost
from .options import DEFAULTS, GroupOptions, QueueOptions
from .session.connect import connect, set_may_lose
from .session.encoding import Item
from .session.messages import Batch, Message, Receipt, Refusal, Settled
from .session.session import Session
from .session.transaction import Transaction
from .session.within import Within, within

if TYPE_CHECKING:
    from . import aio
    from .remote.retry import RetryPolicy

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
    "RetryPolicy",
    "Session",
    "Settled",
    "Transaction",
    "Verdict",
    "VirtualClock",
    "Within",
    "aio",
    "connect",
    "errors",
    "model",
    "set_may_lose",
    "within",
]


def __getattr__(name: str) -> Any:
    """Import `ackflow.aio` and `ackflow.RetryPolicy` on first use: most programs need neither."""
    if name == "aio":
        return import_module(".aio", __name__)
    if name == "RetryPolicy":
        return import_module(".remote.retry", __name__).RetryPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
