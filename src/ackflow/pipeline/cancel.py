"""Cancelling a client that vanished: what it sent is let go, and what is known of it is deleted.

Every stage looks who is cancelled before it works, and lets go of what belongs to them. Queues are
not purged: that would end the run of a router that reads them.
"""

from collections.abc import Iterable

from .. import Session
from ..errors import AckflowError, NotFound, QueueNotFound
from .declaration import Pipeline
from .held import waiting
from .keeping import MOST, kept


class Finished(AckflowError):
    """The client is finished: its answers are written, and there is nothing to give up."""

    code = "client_finished"
    status = 409


def announce(q: Session, pipeline: Pipeline, clients: Iterable[str]) -> None:
    """Take note of clients before anything of theirs is sent, so that they can be cancelled."""
    known = kept(q, pipeline, "clients")
    new = set(clients) - {*known, *cancelled(q, pipeline)}
    if new:
        t = q.transaction()
        for client in sorted(new):
            t.put(pipeline.value("clients", client), True)
        t.commit()


def known(q: Session, pipeline: Pipeline) -> set[str]:
    """Every client that was announced, or of which anything has come, by whatever way."""
    handled = {key.rpartition("/")[0] for key in kept(q, pipeline, "handled")}
    held = {key.rpartition("/")[0] for key in waiting(q, pipeline)}
    try:
        sent = {part.name for part in q.partitions(pipeline.inbox) if part.messages}
    except QueueNotFound:
        sent = set()
    return {*kept(q, pipeline, "clients"), *handled, *held, *sent}


def cancel(q: Session, pipeline: Pipeline, client: str) -> bool:
    """Give a client up for good; the stages that run let go of what it sent. False if it was
    given up already; one that is finished or that nobody knows is refused."""
    if client in cancelled(q, pipeline):
        return False
    if client in kept(q, pipeline, "done"):
        raise Finished(f"{client} is finished: its answers are written, nothing is left to cancel")
    if client not in known(q, pipeline):
        raise NotFound(f"nobody knows a client {client!r}; nothing was cancelled")
    t = q.transaction()
    t.put(pipeline.value("cancelled", client), True)
    t.commit()
    forget(q, pipeline, client)
    return True


def cancelled(q: Session, pipeline: Pipeline) -> set[str]:
    """The clients that were given up."""
    return set(kept(q, pipeline, "cancelled"))


def forget(q: Session, pipeline: Pipeline, client: str) -> None:
    """Delete the counts kept of a client; a stage that was at work may have written some again."""
    keys = [pipeline.value("clients", client)] if client in kept(q, pipeline, "clients") else []
    for kind in ("handled", "shard"):
        keys += [found.key for found in q.values(pipeline.value(kind, client, ""), limit=MOST)]
    for key in keys:
        t = q.transaction()
        t.delete(key)
        t.commit()
