"""The Queen dialect, where messages go through: push, pop, ack, transactions, leases."""

from typing import Any

from ....server.http import Handler, Route
from .ack import Ack, AckBatch, Acked, AckedItem, Extend, Extended, ack, ack_batch, extend_lease
from .common import Failure, refuse
from .pop import QUERY, WIDE, PopAnswer, pop_partition, pop_queue, pop_wide
from .push import Push, Pushed, push
from .transaction import Committed, Transaction, transact

POPPED = {200: PopAnswer, 204: None}


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    return Route(
        method, f"/api/v1/{path}", handler, refuse=refuse, error=Failure, tag="queen", **more
    )


ROUTES = (
    _route("POST", "push", push, summary="Push messages to any queues", body=Push,
           answers={201: list[Pushed]}, checks=True),
    _route("GET", "pop/queue/{queue}", pop_queue, summary="Pop from a queue", query=QUERY,
           answers=POPPED),
    _route("GET", "pop/queue/{queue}/partition/{partition}", pop_partition,
           summary="Pop from a partition", query=QUERY, answers=POPPED),
    _route("GET", "pop", pop_wide, summary="Pop from the queues of a namespace or task",
           query=WIDE, answers=POPPED, checks=True),
    _route("POST", "ack", ack, summary="Settle one message", body=Ack, answers={200: Acked},
           checks=True),
    _route("POST", "ack/batch", ack_batch, summary="Settle many messages", body=AckBatch,
           answers={200: list[AckedItem]}, checks=True),
    _route("POST", "transaction", transact, summary="Pushes and acks, all or nothing",
           body=Transaction, answers={200: Committed}, checks=True),
    _route("POST", "lease/{leaseId}/extend", extend_lease, summary="Keep a lease alive",
           body=Extend, answers={200: Extended}, checks=True),
)  # fmt: skip
