"""The small keyed values that the stages of a pipeline keep in the queue's database."""

from typing import Any

import msgspec

from .. import Session
from ..clock import SECOND
from .declaration import Pipeline

MAX_KEYS = 100_000


class HeldEnds(msgspec.Struct):
    """The number of unacknowledged end-of-file messages of a table, and the time of the first."""

    ends: int
    since: float


def read_state(q: Session, pipeline: Pipeline, *parts: str) -> dict[str, Any]:
    """Return all values whose key begins with `parts`, by the rest of their key."""
    prefix = pipeline.state_key(*parts, "")
    values = q.values(prefix, limit=MAX_KEYS)
    return {value.key.removeprefix(prefix): value.data for value in values}


def held_ends(q: Session, pipeline: Pipeline) -> dict[str, HeldEnds]:
    """Return the unacknowledged end-of-file messages that the router last reported.

    The keys are `client/table`.
    """
    value = q.value(pipeline.state_key("held"))
    return {} if value is None else msgspec.convert(value.data, dict[str, HeldEnds])


def pipeline_names(q: Session) -> list[str]:
    """Return the names of the pipelines that keep state in this database."""
    return sorted({value.key.split("/")[1] for value in q.values("pipeline/", limit=MAX_KEYS)})


def broker_time(q: Session) -> float:
    """Return the broker's clock in seconds, which all stages share."""
    return q.broker.clock.now() / SECOND
