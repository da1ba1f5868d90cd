"""The small values that the stages of a pipeline keep in the queue."""

from typing import Any

from .. import Session
from ..clock import SECOND
from .declaration import Pipeline

MOST = 100_000


def broker_time(q: Session) -> float:
    """The time by which messages and leases are stamped, on which the stages agree."""
    return q.broker.clock.now() / SECOND


def pipelines(q: Session) -> list[str]:
    """The pipelines that keep anything here."""
    return sorted({found.key.split("/")[1] for found in q.values("pipeline/", limit=MOST)})


def kept(q: Session, pipeline: Pipeline, *parts: str) -> dict[str, Any]:
    """What is kept under a key, by the rest of its key."""
    prefix = pipeline.value(*parts, "")
    return {found.key.removeprefix(prefix): found.data for found in q.values(prefix, limit=MOST)}
