"""PushPopActor: push, pop and acknowledge under one lock per queue, as in PushPop."""

from .dialects.pushpop.actor import (
    AcknowledgeRequest,
    AcknowledgeResponse,
    PopResponse,
    PopWithAckRequest,
    PopWithAckResponse,
    PushPopActor,
    PushRequest,
    PushResponse,
)

__all__ = [
    "AcknowledgeRequest",
    "AcknowledgeResponse",
    "PopResponse",
    "PopWithAckRequest",
    "PopWithAckResponse",
    "PushPopActor",
    "PushRequest",
    "PushResponse",
]
