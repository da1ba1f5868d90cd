"""A model of the broker in a few dictionaries, written from the specification, not from the code.

The test sets the model's time; a lease ends exactly at its time, whether or not the broker has
expired it. Where the specification allows several results (which of two equal lanes), the model
follows the broker after checking that its result was allowed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

SECOND = 1_000_000
VERBS = ("ack", "nack", "release", "requeue", "reject", "dead_letter")
CODES = {"expired": "lease_expired", "skipped": "invalid_lease", "purged": "invalid_lease",
         "deleted": "invalid_lease"} | dict.fromkeys(VERBS, "already_settled")  # fmt: skip


class LaneKey(NamedTuple):
    queue: str
    partition: str
    priority: int


class Place(NamedTuple):
    """The position of a message, which is its identity."""

    lane: LaneKey
    seq: int

    def __repr__(self) -> str:
        return f"{self.lane.queue}/{self.lane.partition}/{self.lane.priority}#{self.seq}"


GroupKey = tuple[str, str]


@dataclass
class Rules:
    ordering: str = "shared"
    policy: str = "explicit"
    lease: float = 30.0
    retry_limit: int | None = 3
    max_deliver: int | None = 20
    backoff: tuple[float, ...] = ()
    window: int | None = None

    def pause(self, deliveries: int) -> int:
        steps = self.backoff or (0.0,)
        return round(steps[min(deliveries, len(steps)) - 1] * SECOND)

    def spent(self, deliveries: int) -> bool:
        return self.max_deliver is not None and deliveries >= self.max_deliver


@dataclass
class Msg:
    data: int
    created: int
    due: int
    only: GroupKey | None = None
    carry: tuple[int, int, bool] = (0, 0, False)
    stored: bool = True
    gone: bool = False


@dataclass
class State:
    """The state of a message in a group. `open` is ready or waiting, by its due time."""

    kind: str
    due: int
    deliveries: int
    failures: int
    redelivered: bool
    returned: bool = False
    token: str | None = None


@dataclass
class Lease:
    group: GroupKey
    end: int
    places: list[Place]
    fates: dict[Place, str] = field(default_factory=dict)
    ended: int | None = None


@dataclass
class Letter:
    kind: str
    deliveries: int
    failures: int
    died: int
    data: int


@dataclass
class Outcome:
    settled: int = 0
    noop: int = 0
    dead: int = 0
    refused: dict[Place, str] = field(default_factory=dict)


@dataclass
class Group:
    rules: Rules
    paused: bool = False
    states: dict[Place, State] = field(default_factory=dict)
    served: dict[LaneKey, int] = field(default_factory=dict)
    alone: dict[LaneKey, int] = field(default_factory=dict)  # served then at the earliest
    delivered: int = 0
    consumed: int = 0
    failed: int = 0


class Model:
    def __init__(self, now: int, queues: Iterable[str], groups: dict[GroupKey, Rules]) -> None:
        self.now = now
        self.paused = dict.fromkeys(queues, False)
        self.lanes: dict[LaneKey, list[Msg]] = {}
        self.groups = {key: Group(rules) for key, rules in groups.items()}
        self.leases: dict[str, Lease] = {}
        self.letters: dict[tuple[GroupKey, Place], Letter] = {}
        self.txids: dict[tuple[str, str, str], tuple[Place, int]] = {}

    def msg(self, place: Place) -> Msg:
        return self.lanes[place.lane][place.seq]

    def state(self, key: GroupKey, place: Place) -> State:
        return self.groups[key].states[place]

    def lanes_of(self, queue: str, partition: str | None = None) -> list[LaneKey]:
        return [k for k in self.lanes if k.queue == queue and partition in (None, k.partition)]

    def held(self, token: str) -> list[Place]:
        lease = self.leases[token]
        return [place for place in lease.places if place not in lease.fates]

    def live(self, key: GroupKey) -> list[str]:
        return [t for t, lease in self.leases.items() if lease.group == key and not lease.ended]

    # time

    def advance(self, now: int) -> None:
        self.now = now
        over = [(lease.end, token) for token, lease in self.leases.items() if not lease.ended]
        for end, token in sorted(over):
            if end <= now:
                self._expire(token, end)

    def _expire(self, token: str, end: int) -> None:
        lease = self.leases[token]
        rules = self.groups[lease.group].rules
        for place in self.held(token):
            state = self.state(lease.group, place)
            if rules.spent(state.deliveries):
                self._bury(lease.group, place, "max_deliver", end)
            else:
                self._again(state, end + rules.pause(state.deliveries))
            self._fate(token, place, "expired", end)

    # push and copies

    def push(self, lane: LaneKey, data: int, delay: float, txid: str | None) -> tuple[Place, bool]:
        """Return the place of the message, and whether it was a duplicate."""
        known = self.txids.get((lane.queue, lane.partition, txid or ""))
        if known and known[1] > self.now:
            return known[0], True
        place = self._append(lane, Msg(data, self.now, self.now + round(delay * SECOND)))
        if txid is not None:
            self.txids[lane.queue, lane.partition, txid] = place, self.now + 86_400 * SECOND
        return place, False

    def _append(self, lane: LaneKey, msg: Msg) -> Place:
        messages = self.lanes.setdefault(lane, [])
        messages.append(msg)
        place = Place(lane, len(messages) - 1)
        for key, group in self.groups.items():
            if key[0] == lane.queue and msg.only in (None, key):
                group.states[place] = self._fresh(msg)
        return place

    def _fresh(self, msg: Msg) -> State:
        return State("purged" if msg.gone or not msg.stored else "open", msg.due, *msg.carry)

    def _copy(
        self, key: GroupKey, place: Place, delay: float, carry: tuple[int, int, bool]
    ) -> None:
        due = self.now + round(delay * SECOND)
        self._append(place.lane, Msg(self.msg(place).data, self.now, due, key, carry))

    # pop

    def room(self, key: GroupKey) -> tuple[int, str | None]:
        group = self.groups[key]
        if self.paused[key[0]] or group.paused:
            return 0, "paused"
        if group.rules.ordering == "exclusive" and self.live(key):
            return 0, "locked"
        leased = sum(state.kind == "leased" for state in group.states.values())
        room = 1 << 40 if group.rules.window is None else group.rules.window - leased
        return max(0, room), None if room > 0 else "window"

    def ready(self, key: GroupKey, partition: str | None = None) -> dict[LaneKey, list[Place]]:
        """Return the messages that may be delivered now, by lane, in sequence."""
        group = self.groups[key]
        ordered = group.rules.ordering == "ordered"
        busy = {p.lane.partition for p, state in group.states.items() if state.kind == "leased"}
        found: dict[LaneKey, list[Place]] = {}
        for lane in self.lanes_of(key[0], partition):
            if ordered and lane.partition in busy:
                continue
            for seq in range(len(self.lanes[lane])):
                state = group.states.get(Place(lane, seq))
                if state is None or state.kind != "open":
                    continue
                if state.due <= self.now:
                    found.setdefault(lane, []).append(Place(lane, seq))
                elif ordered and state.returned:
                    break
        return found

    def check_pop(
        self, key: GroupKey, batch: int, partition: str | None, most: int | None, got: list[Place]
    ) -> None:
        """Fail unless a pop may have delivered exactly these messages, in this order."""
        group = self.groups[key]
        want, left = min(batch, self.room(key)[0]), list(got)
        most = most or (1 if group.rules.ordering == "ordered" else 64)
        ready, homes = self.ready(key, partition), set[str]()
        while want and ready:
            if len(homes) >= most:  # then the batch is filled from the partitions it has
                ready = {lane: some for lane, some in ready.items() if lane.partition in homes}
                if not ready:
                    break
            turn = {lane: (lane.priority, group.served.get(lane, 0)) for lane in ready}
            first = [
                lane
                for lane in ready
                if (lane.priority, group.alone.get(lane, turn[lane][1])) <= min(turn.values())
            ]
            assert left, f"{key}: nothing more came although {first} had {ready[first[0]][:3]}"
            lane = left[0].lane
            assert lane in first, f"{key}: {left[0]} came before {first}, turns {turn}"
            homes.add(lane.partition)
            assert len(homes) <= most, f"{key}: more than {most} partitions"
            due = ready.pop(lane)[:want]
            assert left[: len(due)] == due, f"{key}: {left} came instead of {due}"
            want, left = want - len(due), left[len(due) :]
        assert not left, f"{key}: {left} should not have come"

    def pop(self, key: GroupKey, got: list[Place], token: str | None, end: int) -> None:
        group = self.groups[key]
        alone = len(self.ready(key)) == 1  # then the lane may have kept its turn
        for place in got:
            if alone:
                group.alone.setdefault(place.lane, group.served.get(place.lane, 0))
            else:
                group.alone.pop(place.lane, None)
        for place in got:
            state = group.states[place]
            state.deliveries += 1
            state.kind, state.token = ("done", None) if token is None else ("leased", token)
            group.served[place.lane] = self.now
        group.delivered += len(got)
        if token is None:
            group.consumed += len(got)
        elif got:
            assert token not in self.leases, "a token was given twice"
            self.leases[token] = Lease(key, end, list(got))

    # settle

    def settle(
        self, token: str, verb: str, asked: Iterable[Place], delay: float | None = None,
        rest: bool = False, up_to: bool = False,
    ) -> Outcome:  # fmt: skip
        """Settle the given messages in order; the result has the outcome of each."""
        out = Outcome()
        for place in asked:
            lease = self.leases.get(token)
            if lease is None:
                out.refused[place] = "invalid_lease"
            elif place not in lease.places:
                out.refused[place] = "not_found"
            elif (fate := lease.fates.get(place)) is None:
                self._settle(token, lease.group, verb, place, delay, up_to, out)
                after = lease.places[lease.places.index(place) + 1 :] if rest else []
                for other in after:
                    if other not in lease.fates:
                        self._settle(token, lease.group, "release", other, None, False, Outcome())
            elif fate == verb:
                out.noop += 1
                if up_to:
                    self._ack_before(token, lease.group, place, False, out)
            else:
                out.refused[place] = CODES[fate]
        return out

    def settle_whole(self, token: str, verb: str) -> Outcome:
        """Settle the rest of a lease; messages settled before are reported only if none is left."""
        out = self.settle(token, verb, self.leases[token].places)
        if out.settled or out.noop:
            out.refused = {p: c for p, c in out.refused.items() if c != "already_settled"}
        return out

    def _settle(
        self, token: str, key: GroupKey, verb: str, place: Place, delay: float | None,
        up_to: bool, out: Outcome,
    ) -> None:  # fmt: skip
        group, state = self.groups[key], self.state(key, place)
        rules, dead = group.rules, None
        out.settled += 1
        if verb == "nack":
            state.failures += 1
            group.failed += 1
            if rules.retry_limit is not None and state.failures >= rules.retry_limit:
                dead = "failed"
            elif rules.spent(state.deliveries):
                dead = "max_deliver"
            else:
                pause = rules.pause(state.deliveries) if delay is None else round(delay * SECOND)
                self._again(state, self.now + pause)
        elif verb == "release":
            state.deliveries -= 1
            self._again(state, self.now)
        elif verb == "requeue":
            if rules.spent(state.deliveries):
                dead = "max_deliver"
            else:
                self._copy(key, place, delay or 0.0, (state.deliveries, state.failures, True))
                self._close(state, "done")
        elif verb == "ack":
            group.consumed += 1
            self._close(state, "done")
        else:
            dead = "rejected" if verb == "reject" else "failed"
        if dead is not None:
            self._bury(key, place, dead, self.now)
            out.dead += 1
        self._fate(token, place, verb, self.now)
        if verb == "ack" and (up_to or rules.policy == "all"):
            self._ack_before(token, key, place, rules.policy == "all", out)

    def _ack_before(
        self, token: str, key: GroupKey, last: Place, all_holders: bool, out: Outcome
    ) -> None:
        """Ack the messages before it in its lane: those of the same token, or (policy all) all.
        This does not settle messages that were never delivered."""
        for place in [Place(last.lane, seq) for seq in range(last.seq)]:
            state = self.groups[key].states.get(place)
            if state is None:
                continue
            mine = state.kind == "leased" and (all_holders or state.token == token)
            if mine or (all_holders and state.kind == "open" and state.returned):
                holder = state.token
                self._close(state, "done")
                self.groups[key].consumed += 1
                out.settled += 1
                if holder is not None:
                    self._fate(holder, place, "ack", self.now)

    def extend(self, token: str, seconds: float | None) -> int | str:
        """Return the new end of the lease, or the code of the refusal."""
        lease = self.leases[token]
        if lease.ended:
            lost = {fate for fate in lease.fates.values() if fate not in VERBS}
            return CODES["expired" if "expired" in lost else lost.pop() if lost else "ack"]
        rules = self.groups[lease.group].rules
        lease.end = max(lease.end, self.now + round((seconds or rules.lease) * SECOND))
        return lease.end

    def _again(self, state: State, due: int) -> None:
        state.kind, state.due, state.token = "open", due, None
        state.redelivered = state.returned = True

    def _close(self, state: State, kind: str) -> None:
        state.kind, state.token = kind, None

    def _fate(self, token: str, place: Place, verb: str, at: int) -> None:
        lease = self.leases[token]
        lease.fates[place] = verb
        if len(lease.fates) == len(lease.places):
            lease.ended = at

    def _bury(self, key: GroupKey, place: Place, kind: str, at: int) -> None:
        state = self.state(key, place)
        data = self.msg(place).data
        self.letters[key, place] = Letter(kind, state.deliveries, state.failures, at, data)
        self._close(state, "dead")

    # operator actions

    def drop(self, key: GroupKey, place: Place, kind: str, fate: str | None = None) -> None:
        """End the open state of a message in a group."""
        state = self.groups[key].states.get(place)
        if state is not None and state.kind in ("open", "leased"):
            if state.token is not None:
                self._fate(state.token, place, fate or kind, self.now)
            self._close(state, kind)

    def readers(self, lane: LaneKey) -> list[GroupKey]:
        return [key for key in self.groups if key[0] == lane.queue]

    def purge(self, queue: str, partition: str | None) -> int:
        removed = 0
        for lane in self.lanes_of(queue, partition):
            for seq, msg in enumerate(self.lanes[lane]):
                removed += msg.stored and not msg.gone
                msg.stored = False
                for key in self.readers(lane):
                    self.drop(key, Place(lane, seq), "purged")
        return removed

    def delete(self, place: Place) -> bool:
        msg = self.msg(place)
        if msg.gone or not msg.stored:
            return False
        msg.gone = True
        for key in self.readers(place.lane):
            self.drop(key, place, "purged", "deleted")
        return True

    def seek(self, key: GroupKey, lane: LaneKey, target: int, back: bool) -> None:
        """Move a cursor. Forward, passed messages are skipped; back, all messages from the target
        on are new again, and all before it count as skipped."""
        for seq, msg in enumerate(self.lanes[lane]):
            place = Place(lane, seq)
            if place in self.groups[key].states:
                if back or seq < target:
                    self.drop(key, place, "skipped")
                if back:
                    fresh = self._fresh(msg) if seq >= target else State("skipped", 0, 0, 0, False)
                    self.groups[key].states[place] = fresh

    def delete_queue(self, queue: str) -> None:
        """Delete a queue; its groups start again as soon as it is used."""
        self.lanes = {key: some for key, some in self.lanes.items() if key.queue != queue}
        self.txids = {key: known for key, known in self.txids.items() if key[0] != queue}
        self.paused[queue] = False
        for key in [key for key in self.groups if key[0] == queue]:
            self.delete_group(key, {})

    def delete_group(self, key: GroupKey, bases: dict[LaneKey, int]) -> None:
        """Delete a group, and create it again. It starts with the oldest messages."""
        self.leases = {t: lease for t, lease in self.leases.items() if lease.group != key}
        self.letters = {at: letter for at, letter in self.letters.items() if at[0] != key}
        group = self.groups[key] = Group(self.groups[key].rules)
        for lane in self.lanes_of(key[0]):
            for seq, msg in enumerate(self.lanes[lane]):
                if msg.only == key:
                    msg.only = (key[0], "deleted")
                if seq < bases[lane]:  # copies for other groups included
                    group.states[Place(lane, seq)] = State("skipped", 0, 0, 0, False)
                elif msg.only is None:
                    group.states[Place(lane, seq)] = self._fresh(msg)

    def redrive(self, key: GroupKey, place: Place) -> None:
        self.forget(key, place, "done")
        self._copy(key, place, 0.0, (0, 0, True))

    def forget(self, key: GroupKey, place: Place, kind: str) -> None:
        del self.letters[key, place]
        state = self.state(key, place)
        if state.kind == "dead":
            self._close(state, kind)

    # reading

    def counts(self, key: GroupKey, late: Iterable[Place] = ()) -> dict[str, int]:
        """Return the state of every message; those in `late` are still shown as leased."""
        counts = dict.fromkeys(
            ("ready", "leased", "waiting", "dead", "done", "skipped", "purged", "expired"), 0
        )
        late = set(late)
        for place, state in self.groups[key].states.items():
            kind = "leased" if place in late else state.kind
            if kind == "open":
                kind = "ready" if state.due <= self.now else "waiting"
            counts[kind] += 1
        return counts

    def next_ready(self, key: GroupKey) -> list[int]:
        """Return every time at which the state of a group changes without a call."""
        times = [state.due for state in self.groups[key].states.values() if state.kind == "open"]
        times += [self.leases[token].end for token in self.live(key)]
        return sorted({time for time in times if time > self.now})
