"""Which ends of file are not acknowledged, as the router last told."""

import msgspec

from .. import Session
from .declaration import Pipeline


class Waiting(msgspec.Struct):
    """How many ends of file of a table are not acknowledged, and since when the first is not."""

    ends: int
    since: float


def waiting(q: Session, pipeline: Pipeline) -> dict[str, Waiting]:
    """What is not acknowledged, by client and table: `client/table`."""
    found = q.value(pipeline.value("held"))
    return {} if found is None else msgspec.convert(found.data, dict[str, Waiting])
