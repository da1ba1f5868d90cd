"""Cancelling a client that vanished: what it sent is let go, and what is known of it is deleted.

Every stage looks who is cancelled before it works, and lets go of what belongs to them. Queues are
not purged: that would end the run of a router that reads them.
"""

from .. import Session
from .declare import Pipeline
from .keeping import kept


def cancel(q: Session, pipeline: Pipeline, client: str) -> None:
    """Give a client up for good; the stages that run let go of what it sent."""
    t = q.transaction()
    t.put(pipeline.value("cancelled", client), True)
    t.commit()
    forget(q, pipeline, client)


def cancelled(q: Session, pipeline: Pipeline) -> set[str]:
    """The clients that were given up."""
    return set(kept(q, pipeline, "cancelled"))


def forget(q: Session, pipeline: Pipeline, client: str) -> None:
    """Delete the counts kept of a client; a stage that was at work may have written some again."""
    for kind in ("handled", "shard"):
        for found in q.values(pipeline.value(kind, client, "")):
            t = q.transaction()
            t.delete(found.key)
            t.commit()
