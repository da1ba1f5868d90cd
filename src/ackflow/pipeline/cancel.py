"""Cancelling a client that will not finish: its messages and its state are dropped.

Every stage reads the list of cancelled clients before it works, and acknowledges the messages of
these clients unprocessed. Queues are not purged: a purge would end the leases of a running router.
"""

from collections.abc import Iterable

from .. import Session
from ..errors import AckflowError, NotFound, QueueNotFound
from .declaration import Pipeline
from .state import MAX_KEYS, held_ends, read_state


class ClientFinished(AckflowError):
    """The client is finished: its answers are written, and there is nothing to cancel."""

    code = "client_finished"
    status = 409


def announce_clients(q: Session, pipeline: Pipeline, clients: Iterable[str]) -> None:
    """Record clients before any of their data is sent, so that they can be cancelled."""
    announced = read_state(q, pipeline, "clients")
    new = set(clients) - {*announced, *cancelled_clients(q, pipeline)}
    if new:
        t = q.transaction()
        for client in sorted(new):
            t.put(pipeline.state_key("clients", client), True)
        t.commit()


def known_clients(q: Session, pipeline: Pipeline) -> set[str]:
    """Return every client that was announced or has sent anything."""
    handled = {key.rpartition("/")[0] for key in read_state(q, pipeline, "handled")}
    held = {key.rpartition("/")[0] for key in held_ends(q, pipeline)}
    try:
        sent = {stats.name for stats in q.partitions(pipeline.inbox) if stats.messages}
    except QueueNotFound:
        sent = set()
    return {*read_state(q, pipeline, "clients"), *handled, *held, *sent}


def cancel(q: Session, pipeline: Pipeline, client: str) -> bool:
    """Cancel a client for good; return False if it was cancelled before.

    Raises ClientFinished for a finished client and NotFound for an unknown one.
    """
    if client in cancelled_clients(q, pipeline):
        return False
    if client in read_state(q, pipeline, "done"):
        raise ClientFinished(f"client {client!r} is finished: its answers are already written")
    if client not in known_clients(q, pipeline):
        raise NotFound(f"unknown client {client!r}; nothing was cancelled")
    t = q.transaction()
    t.put(pipeline.state_key("cancelled", client), True)
    t.commit()
    delete_counts(q, pipeline, client)
    return True


def cancelled_clients(q: Session, pipeline: Pipeline) -> set[str]:
    """Return the clients that were cancelled."""
    return set(read_state(q, pipeline, "cancelled"))


def delete_counts(q: Session, pipeline: Pipeline, client: str) -> None:
    """Delete the counts of a client.

    Called again later, because a stage that was at work may have written some after the first call.
    """
    keys = []
    if client in read_state(q, pipeline, "clients"):
        keys.append(pipeline.state_key("clients", client))
    for kind in ("handled", "shard"):
        prefix = pipeline.state_key(kind, client, "")
        keys += [value.key for value in q.values(prefix, limit=MAX_KEYS)]
    for key in keys:
        t = q.transaction()
        t.delete(key)
        t.commit()
