"""What statistics, dead letters and leases show, compared with the model after each step."""

from collections.abc import Callable

from ackflow import Session

from .cases import GROUPS
from .model import SECOND, GroupKey, Model, Place


class ViewChecks:
    """The part of the state machine that reads without changing anything."""

    model: Model
    sessions: list[Session]
    place_of: Callable[[str], Place]
    letters: Callable[..., list[tuple[GroupKey, Place]]]

    def check_counts(self, queue: str, late: dict[GroupKey, set[Place]]) -> None:
        """Statistics equal a recount; a lease past its end may be shown until it is expired."""
        model, stats = self.model, self.sessions[-1].queue_stats(queue)
        messages = [msg for lane in model.lanes_of(queue) for msg in model.lanes[lane]]
        assert stats.messages == sum(msg.stored and not msg.gone for msg in messages)
        for shown in stats.groups:
            key, group = (queue, shown.name), model.groups[queue, shown.name]
            told = {name: getattr(shown.counts, name) for name in shown.counts.__struct_fields__}
            right = model.counts(key, late[key]), model.counts(key)
            assert told in right, f"{key}: {told} is shown instead of {right}"
            assert shown.counts.pushed == len(group.states), key
            history = shown.delivered, shown.consumed, shown.failed
            assert history == (group.delivered, group.consumed, group.failed), key

    def check_dead_letters(self, queue: str, late: dict[GroupKey, set[Place]]) -> None:
        """Each dead letter exists exactly once."""
        found = self.sessions[0].dead_letters(queue, limit=10_000).items
        told = {}
        for d in found:
            died = round(d.died_at.timestamp() * SECOND)
            which = (queue, d.group), self.place_of(d.message_id)
            told[which] = d.kind, d.deliveries, d.failures, died, d.data
        assert len(told) == len(found)
        letters = {which: self.model.letters[which] for which in self.letters(queue, None, late)}
        for which in [which for which in told if which[1] in late[which[0]]]:
            letters.pop(which, None)  # it died again, in a lease not yet expired by the broker
            del told[which]
        assert told == {
            which: (x.kind, x.deliveries, x.failures, x.died, x.data)
            for which, x in letters.items()
        }

    def check_leases(self, queue: str) -> None:
        told = {x.token: x.held for x in self.sessions[0].leases(queue)}
        live = [t for k in GROUPS if k[0] == queue for t in self.model.live(k)]
        assert told == {token: len(self.model.held(token)) for token in live}
