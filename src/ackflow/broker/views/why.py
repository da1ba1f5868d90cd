"""Why: what happened to a message for a group, and why it is or is not delivered now."""

from typing import Any

from ... import ids, ranges, validate
from ...clock import SECOND, micros
from ...ids import NO_LEASE
from ...model import Why, when
from ...options import QUEUE_MODE
from ...store.encryption import SealedText
from ...store.records import DUE, LEASED, Claim, Cursor, Fate, Group, Lane, Lease, Queue
from ...store.tx import Tx
from ..core.admin.global_pause import is_paused
from ..core.cursors import hidden_copies_in
from ..core.routing.publish import drop_too_old
from ..core.take import dead_letter_overdue
from ..core.topology import complete_cursors, no_group
from ..core.upkeep.retention import drop_old
from ..reach.merging import Several
from ..verb import verb
from .stats import visible_in

ROWS = 100  # of a slice

# Fates that end a message, with its state and in words; all other fates return it.
_ENDS = {
    "ack": ("acked", "acknowledged"),
    "requeue": ("requeued", "requeued, a copy went to the end of its lane"),
    "skipped": ("skipped", "skipped, the group was moved past it"),
    "purged": ("purged", "purged with its queue or partition"),
    "redriven": ("redriven", "sent back from the dead letters as a copy"),
    "thrown away": ("purged", "purged from the dead letters"),
    "retention": ("expired", "removed by retention, older than its queue keeps messages"),
}


@verb("read-only", queue="queue_name", several=Several(message="id"))
def drop_overdue(tx: Tx, queue_name: str, id: str, group_name: str | None = None) -> bool:
    """Drop or dead-letter some messages that no pop would deliver, in the lane of a message.

    So does upkeep. Returns whether there may be more; call it until there are none, before `why`.
    Without a group it is done for all of them.
    """
    place = ids.parse_message_id(id)
    queue = tx.queue(validate.name(queue_name, "queue"))
    lane = tx.lane(place.lane) if queue is not None and place.store == tx.store else None
    if queue is None or lane is None or lane.queue != queue.id:
        return False
    options = queue.options
    complete_cursors(tx, queue, lane)
    more = options.retention_seconds is not None and drop_old(tx, queue, lane, ROWS)[0] > 0
    if options.ttl_seconds is not None:
        more = drop_too_old(tx, queue, lane, ROWS) > 0 or more
    if options.max_wait_seconds is not None:
        for group in tx.groups(queue.id):
            if group_name in (None, group.name):
                more = dead_letter_overdue(tx, lane.id, group.id)[1] or more
    return more


@verb("read-only", queue="queue_name", read_only=True, several=Several(message="id"))
def why(tx: Tx, queue_name: str, id: str, group_name: str = QUEUE_MODE) -> Why:
    """Explain in one sentence and in fields; an unknown message or queue is an answer too.

    It reads due messages and the history of leases, however many there are; the writer goes on
    meanwhile.
    """
    place = ids.parse_message_id(id)
    base: dict[str, Any] = {"message_id": id, "group": group_name}
    queue = tx.queue(validate.name(queue_name, "queue"))
    validate.name(group_name, "group")
    if queue is None:
        return Why(f"Unknown: there is no queue {queue_name!r}.", "unknown", **base)
    lane = tx.lane(place.lane) if place.store == tx.store else None
    if lane is None or lane.queue != queue.id or place.sequence >= lane.head:
        return Why(f"Unknown: queue {queue_name!r} never had this message.", "unknown", **base)
    home = tx.partition_by_id(lane.partition)
    assert home is not None
    base |= {"partition": home.name, "priority": lane.priority, "sequence": place.sequence}
    group = tx.group(queue.id, group_name)
    cursor = tx.cursor(lane.id, group.id) if group is not None else None
    if group is None or cursor is None:
        return Why(f"Not requested yet: {no_group(queue_name, group_name)}; "
                   "its first pop creates it.", "no_group", **base)  # fmt: skip
    return _Case(tx, queue, group, lane, cursor, place.sequence, base).answer()


class _Case:
    """One message of one group."""

    def __init__(
        self, tx: Tx, queue: Queue, group: Group, lane: Lane, cursor: Cursor, sequence: int,
        base: dict[str, Any],
    ) -> None:  # fmt: skip
        self.tx, self.queue, self.group, self.lane = tx, queue, group, lane
        self.cursor, self.sequence, self.base = cursor, sequence, base

    def answer(self) -> Why:
        if hidden_copies_in(self.tx, self.lane, self.group.id, self.sequence, self.sequence + 1):
            return self.say("hidden", "Not for this group: it is a copy made for another group.")
        if self.tx.is_gone(self.lane, self.sequence) and not self.trimmed():
            return self.gone()
        if self.sequence >= self.cursor.next:
            return self.forgotten() if self.trimmed() else self.unseen()
        for claim in self.tx.claims_in(
            self.lane.id, self.group.id, self.sequence, self.sequence + 1
        ):
            if ranges.contains(claim.ranges, self.sequence):
                return self.claimed(claim)
        for row in self.tx.dead("dead_of", self.group.id, self.lane.id, self.sequence):
            if not row.counted:
                break
            return self.say(
                "dead",
                f"Dead since {_time(row.died_at)} ({row.kind}): {row.reason or 'no reason given'}.",
                kind=row.kind, error=row.reason, at=when(row.died_at), deliveries=row.deliveries,
                failures=row.failures, consumer=row.consumer, dead_letter=row.id,
            )  # fmt: skip
        return self.settled()

    def say(self, state: str, sentence: str, **fields: Any) -> Why:
        return Why(sentence, state, **self.base, **fields)

    def delayed_until(self) -> int | None:
        """Return when a delayed message is due, or None if it is not delayed now."""
        for segment, _, _ in self.tx.segments_over(
            self.lane.id, [self.sequence, self.sequence + 1]
        ):
            if segment.delayed(self.tx.now):
                return segment.not_before
        return None

    def unseen(self) -> Why:
        until = self.delayed_until()
        if until is not None:
            return self.say("delayed", f"Delayed until {_time(until)}.", until=when(until),
                            deliveries=0)  # fmt: skip
        there, delayed = visible_in(
            self.tx, self.group.id, self.lane, self.cursor.next, self.sequence
        )
        gone = self.tx.gone(self.lane, self.cursor.next, self.sequence)
        ahead = ranges.count(ranges.difference(there, gone)) - delayed
        return self.ready(ahead + self.due_before(self.cursor.next) + 1, {"deliveries": 0})

    def due_before(self, sequence: int) -> int:
        found = self.tx.due_claims(self.lane.id, self.group.id, 1 << 30)
        return sum(ranges.count(ranges.clip(c.ranges, 0, sequence)) for c in found)

    def claimed(self, claim: Claim) -> Why:
        error = "(encrypted)" if isinstance(claim.error, SealedText) else claim.error
        counters = {
            "deliveries": claim.deliveries,
            "failures": claim.failures,
            "error": error,
        }
        if claim.state == LEASED:
            lease = self.tx.lease_by_id(claim.lease or NO_LEASE)
            assert lease is not None
            assert claim.at is not None
            return self.say(
                "leased",
                f"Leased by {lease.consumer} until {_time(claim.at)}, "
                f"delivery {claim.deliveries}.",
                consumer=lease.consumer, token=ids.token_text(lease.token), until=when(claim.at),
                at=when(lease.acquired_at), **counters,
            )  # fmt: skip
        if claim.state == DUE:
            return self.ready(self.due_before(self.sequence) + 1, counters)
        assert claim.at is not None
        if not claim.returned:
            until = self.delayed_until() or claim.at
            return self.say(
                "delayed", f"Delayed until {_time(until)}.", until=when(until), **counters
            )
        last = self.last_fate()
        after = "after its lease ran out"
        if (error or claim.failures) and (last is None or last[0].verb != "expired"):
            after = f"after {error!r}" if error else "after a failure without a reason"
        return self.say(
            "waiting", f"Waiting until {_time(claim.at)} {after}.", until=when(claim.at), **counters
        )

    def ready(self, position: int, counters: dict[str, Any]) -> Why:
        """Explain a message that could be delivered, unless something holds it back."""
        fields = {"position": position, **counters}
        if self.queue.paused or self.group.paused:
            what = "queue" if self.queue.paused else "group"
            return self.say("paused", f"Held back: the {what} is paused.", **fields)
        if is_paused(self.tx):
            return self.say("paused", "Held back: delivery is paused for all queues.", **fields)
        held = self.held_back()
        if held is not None:
            return self.say("held_back", held[0], behind=held[1], until=held[2], **fields)
        window = self.group.rules.max_ack_pending
        if window is not None and self.tx.in_window(self.group.id) >= window:
            return self.say("window_full", f"Held back: {window} messages are leased already, "
                            "as many as max_ack_pending allows.", **fields)  # fmt: skip
        return self.say("ready", f"Ready at position {position} of its lane.", **fields)

    def held_back(self) -> tuple[str, str | None, Any] | None:
        ordering, window = self.group.rules.ordering, self.queue.options.window_seconds
        if window:
            quiet = max(lane.last_at for lane in self.tx.lanes_in(self.lane.partition))
            quiet += micros(window)
            if quiet > self.tx.now:
                sentence = f"Held back until its partition has been quiet for {window:g} s, at the earliest"
                return f"{sentence} at {_time(quiet)}.", None, when(quiet)
        if ordering == "shared":
            return None
        end = self.tx.lock_end(self.group.id)
        if ordering == "exclusive":
            if end is None or end <= self.tx.now:
                return None
            return f"Held back: the queue is locked until {_time(end)}.", None, when(end)
        if self.cursor.blocked:
            return self.behind_lease()
        returned = self.tx.first_returned(self.lane.id, self.group.id)
        if returned is None or returned > self.sequence:
            return None
        other = ids.message_id(self.tx.store, self.lane.id, returned)
        (claim,) = [c for c in self.tx.claims_in(self.lane.id, self.group.id, returned, returned + 1)
                    if ranges.contains(c.ranges, returned)]  # fmt: skip
        at = claim.at or self.tx.now
        return (
            f"Held back by message {other} before it, which waits until {_time(at)}.",
            other,
            when(at),
        )

    def behind_lease(self) -> tuple[str, str | None, Any]:
        for lane in self.tx.lanes_in(self.lane.partition):
            for claim in self.tx.claims_in(lane.id, self.group.id, 0, lane.head):
                lease = self.tx.lease_by_id(claim.lease) if claim.lease else None
                if lease is not None and claim.at is not None:
                    other = ids.message_id(self.tx.store, lane.id, claim.ranges[0])
                    return (
                        f"Held back by message {other}, leased by {lease.consumer} until "
                        f"{_time(claim.at)}: the group reads each partition in order.",
                        other,
                        when(claim.at),
                    )
        return "Held back: its partition is leased.", None, None

    def trimmed(self) -> bool:
        """Return whether its segment was dropped, after every group had settled it."""
        one = [self.sequence, self.sequence + 1]
        return not any(self.tx.segments_over(self.lane.id, one))

    def gone(self) -> Why:
        """Explain a message that is no longer stored: deleted, or dropped by time to live."""
        last = self.last_fate()
        if last is not None and last[0].verb == "retention":
            return self.over(last[0].verb, last[0].at, last[1])
        return self.deleted()

    def deleted(self) -> Why:
        if self.queue.options.ttl_seconds is not None:
            return self.say(
                "deleted", "Gone: it was removed by hand, or exceeded its time to live."
            )
        return self.say("deleted", "Deleted: the message was removed by hand.")

    def settled(self) -> Why:
        """Explain a message that has ended, from the history of leases."""
        last = self.last_fate()
        return self.forgotten() if last is None else self.over(last[0].verb, last[0].at, last[1])

    def last_fate(self) -> tuple[Fate, Lease] | None:
        """Return how the newest lease or note ended the message, while there is a history.

        A message that is gone is noted for every group when the base of its lane moves; for a group
        that had settled it before, that earlier end is returned.
        """
        gone: tuple[Fate, Lease] | None = None
        for lease in self.tx.leases_of(self.lane.id, self.group.id, self.sequence):
            for fate in reversed(lease.fates):
                if fate.lane != self.lane.id or not ranges.contains(fate.ranges, self.sequence):
                    continue
                if fate.verb != "gone":
                    return (fate, lease) if gone is None or fate.verb in _ENDS else gone
                gone = gone or (fate, lease)
        return gone

    def over(self, verb: str, at: int, lease: Lease) -> Why:
        if verb in ("deleted", "gone"):
            return self.deleted()
        if verb not in _ENDS:
            return self.forgotten()
        state, words = _ENDS[verb]
        holder = {"consumer": lease.consumer, "token": ids.token_text(lease.token)}
        by = f" by {lease.consumer}" if lease.consumer else ""
        ended_at = _time(at, "seconds")  # fates are exact to a second
        return self.say(state, f"Done: {words} at {ended_at}{by}.", at=when(at),
                        **(holder if lease.consumer else {}))  # fmt: skip

    def forgotten(self) -> Why:
        """Explain a message without history: ended long ago, never leased, or not its own."""
        history = self.tx.now - round(self.queue.options.history_seconds * SECOND)
        created = None
        if not self.trimmed():
            created = self.tx.created_at(self.lane.id, self.sequence)
        if created is not None and self.before_the_group(created):
            return self.say("skipped", "Skipped: the group begins after it.")
        if created is not None and created > history:
            return self.say("done", "Done: delivered without a lease.")
        others = "or delivered without a lease"
        if created is None:
            others = (
                "delivered without a lease, deleted, removed before the group began, or meant "
                "for another group"
            )
        return self.say("done", f"Done before {_time(history)}, {others}.", until=when(history))

    def before_the_group(self, created: int) -> bool:
        """Return whether the group starts after this message.

        What a group never read counts as skipped, and comes before all that was skipped later.
        """
        start = self.group.options.start
        began = self.group.created_at if start == "new" else 0 if start == "all" else start
        return created <= began and self.sequence < self.cursor.skipped + self.cursor.hidden


def _time(at: int, exact: str = "milliseconds") -> str:
    return when(at).isoformat(sep=" ", timespec=exact).replace("+00:00", "Z")
