"""Queen's message routes: push, pop, ack, transactions, leases."""

from .ack import (
    Ack,
    AckBatch,
    AckBatchResult,
    AckResult,
    ExtendBody,
    ExtendResult,
    ack,
    ack_batch,
    extend_lease,
)
from .paging import route
from .pop import POP_QUERY, WIDE_POP_QUERY, PopResult, pop_partition, pop_queue, pop_wide
from .push import PushBody, PushResult, push
from .transaction import TransactionBody, TransactionResult, transact

POPPED = {200: PopResult, 204: None}


ROUTES = (
    route("POST", "push", push, "read-write", summary="Push messages to any queues", body=PushBody,
          responses={201: list[PushResult]}, checks_queues=True),
    route("GET", "pop/queue/{queue}", pop_queue, "read-write", summary="Pop from a queue", query=POP_QUERY,
          responses=POPPED),
    route("GET", "pop/queue/{queue}/partition/{partition}", pop_partition, "read-write",
          summary="Pop from a partition", query=POP_QUERY, responses=POPPED),
    route("GET", "pop", pop_wide, "read-write", summary="Pop from the queues of a namespace or task",
          query=WIDE_POP_QUERY, responses=POPPED, checks_queues=True),
    route("POST", "ack", ack, "read-write", summary="Settle one message", body=Ack, responses={200: AckResult},
          checks_queues=True),
    route("POST", "ack/batch", ack_batch, "read-write", summary="Settle many messages", body=AckBatch,
          responses={200: list[AckBatchResult]}, checks_queues=True),
    route("POST", "transaction", transact, "read-write", summary="Push and ack atomically",
          body=TransactionBody, responses={200: TransactionResult}, checks_queues=True),
    route("POST", "lease/{leaseId}/extend", extend_lease, "read-write", summary="Extend a lease",
          body=ExtendBody, responses={200: ExtendResult}, checks_queues=True),
)  # fmt: skip
