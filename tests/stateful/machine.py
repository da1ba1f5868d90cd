"""The state machine: every rule calls one verb of the broker and the same one of the model."""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ackflow
from ackflow import Batch, Item, Message, Session, Settled, Verdict, VirtualClock, errors, ids

from .cases import (
    DELAYS,
    FOCUS,
    GROUPS,
    HISTORY,
    ITEMS,
    KEYS,
    LANES,
    QUEUES,
    SECONDS,
    SOME,
    VERB,
    VERB_LIST,
    Handed,
)  # fmt: skip
from .model import SECOND, GroupKey, LaneKey, Model, Outcome, Place
from .recount import Rows, check_against, check_rows
from .view_checks import ViewChecks


class BrokerMachine(ViewChecks, RuleBasedStateMachine):
    """Runs on an in-memory database, or with two sessions on one database, chosen at random."""

    sessions_wanted = 1

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.folder = Path(tempfile.mkdtemp(prefix="ackflow-"))
        url = self.place()
        self.sessions = [
            ackflow.connect(
                url, clock=self.clock, upkeep=False, may_lose="everything", consumer=f"c{i}"
            )
            for i in range(self.sessions_wanted)
        ]
        self.model = Model(self.clock.now(), ("orders", "jobs"), copy.deepcopy(GROUPS))
        self.store = self.sessions[0].broker.store.id
        self.lane_ids: dict[LaneKey, int] = {}
        self.batches: list[Handed] = []
        self.tokens: dict[int, str] = {}
        self.keyed: list[tuple[str, LaneKey, list[int], list[str]]] = []
        self.numbers = 0
        self.focus: GroupKey | None = None
        self.wide = True

    def place(self) -> str:
        return ":memory:"

    def teardown(self) -> None:
        for session in self.sessions:
            session.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(
        lanes=st.lists(LANES, min_size=2, max_size=4), count=st.integers(1, 6), focus=FOCUS,
        wide=st.booleans(),
    )  # fmt: skip
    def set_up(
        self, lanes: list[LaneKey], count: int, focus: GroupKey | None = None, wide: bool = True
    ) -> None:
        """With `focus`, all work is for one group; without `wide`, it is in one lane."""
        self.focus, self.wide = focus, wide
        q = self.sessions[0]
        q.configure("jobs", keep_seconds=0, history_seconds=HISTORY)
        for (queue, name), rules in GROUPS.items():
            q.group(
                queue, name, ordering=rules.ordering, policy=rules.policy,
                lease_seconds=rules.lease, retry_limit=rules.retry_limit,
                max_deliver=rules.max_deliver, backoff=rules.backoff, max_ack_pending=rules.window,
            )  # fmt: skip
        for lane in lanes:
            self.push_a_run(0, lane, count, False)

    # helpers

    def group(self, key: GroupKey) -> GroupKey:
        return self.focus or key

    def lane(self, lane: LaneKey) -> LaneKey:
        queue = self.focus[0] if self.focus else lane.queue
        return LaneKey(queue, *lane[1:]) if self.wide else LaneKey(queue, "A", 0)

    def q(self, pick: int) -> Session:
        return self.sessions[pick % len(self.sessions)]

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def place_of(self, id: str) -> Place:
        at = ids.parse_message_id(id)
        (lane,) = [key for key, lane in self.lane_ids.items() if lane == at.lane]
        return Place(lane, at.sequence)

    def id_of(self, place: Place) -> str:
        return ids.message_id(self.store, self.lane_ids[place.lane], place.seq)

    def pushed(self, place: Place, id: str) -> None:
        at = ids.parse_message_id(id)
        assert self.lane_ids.setdefault(place.lane, at.lane) == at.lane
        assert at.sequence == place.seq, f"{place} was given sequence {at.sequence}"

    def rows(self) -> Rows:
        return self.sessions[0].broker.look(Rows)

    def known(self, token: str) -> bool:
        """Return whether the lease must still be known: its history is not expired."""
        ended = self.model.leases[token].ended
        return ended is None or ended + HISTORY * SECOND > self.model.now

    def compare(self, told: Settled, expected: Outcome, token: str) -> None:
        if not self.known(token):
            assert (told.settled, told.dead) == (0, 0)
            return
        refused = {self.place_of(r.message_id): r.code for r in told.refused}
        assert refused == expected.refused
        counts = expected.settled, expected.noop, expected.dead
        assert (told.settled, told.noop, told.dead) == counts

    def batch(self, pick: int) -> Handed:
        """Return one of the batches, most often one that is still leased."""
        held = [batch for batch in self.batches if not self.model.leases[batch.token].ended]
        some = held if held and pick % 4 else self.batches[-20:]
        return some[-1 - pick // 4 % len(some)]

    # producing

    @rule(pick=SOME, items=st.lists(ITEMS, min_size=1, max_size=6))
    def push(self, pick: int, items: list[tuple[LaneKey, float | None, str | None]]) -> None:
        """Messages of one lane are in the order of the push. Of two with one transaction id in
        different lanes either may be the duplicate, so such pairs are not pushed."""
        queue = self.lane(items[0][0]).queue
        some, homes = [], dict[str | None, LaneKey]()
        for asked, delay, txid in items:
            lane = self.lane(asked)
            own = txid if homes.setdefault(txid, lane)[1:] == lane[1:] else None
            some.append(
                Item(data=self.number(), partition=lane.partition, priority=lane.priority,
                     delay=delay, transaction_id=own)
            )  # fmt: skip
        receipt, expected = self.q(pick).push(queue, some), []
        for i, item in enumerate(some):
            lane = LaneKey(queue, str(item.partition), int(item.priority or 0))
            place, duplicate = self.model.push(
                lane, item.data, item.delay or 0.0, item.transaction_id
            )
            self.pushed(place, receipt[i])
            expected += [i] if duplicate else []
        assert receipt.duplicates == expected

    @rule(pick=SOME, lane=LANES, count=st.integers(1, 12), key=st.booleans())
    def push_a_run(self, pick: int, lane: LaneKey, count: int, key: bool) -> None:
        lane, data = self.lane(lane), [self.number() for _ in range(count)]
        name = f"k{self.numbers}" if key else None
        receipt = self.q(pick).push(
            lane.queue, data, partition=lane.partition, priority=lane.priority, key=name
        )
        for value, id in zip(data, receipt, strict=True):
            self.pushed(self.model.push(lane, value, 0.0, None)[0], id)
        if name is not None:
            self.keyed.append((name, lane, data, list(receipt)))

    @precondition(lambda self: self.keyed)
    @rule(pick=SOME, which=SOME)
    def repeat_a_push_with_its_key(self, pick: int, which: int) -> None:
        key, lane, data, answer = self.keyed[which % len(self.keyed)]
        _, partition, priority = lane
        again: dict[str, Any] = {"partition": partition, "priority": priority, "key": key}
        if self.model.now - self.model.msg(self.place_of(answer[0])).created < 86_400 * SECOND:
            assert list(self.q(pick).push(lane.queue, data, **again)) == answer
            try:
                self.q(pick).push(lane.queue, [*data, 0], **again)
            except errors.KeyConflict:
                return
            raise AssertionError("another body under the same key was taken")

    # consuming

    @rule(
        pick=SOME, key=KEYS, batch=st.integers(1, 7), auto=st.sampled_from([False] * 7 + [True]),
        seconds=st.sampled_from([None, None, None, 0.5, 120.0]),
        partition=st.sampled_from([None, None, None, "A"]),
        most=st.sampled_from([None, None, None, 1, 2]),
    )  # fmt: skip
    def pop(
        self, pick: int, key: GroupKey, batch: int, auto: bool, seconds: float | None,
        partition: str | None, most: int | None,
    ) -> None:  # fmt: skip
        self.take(pick, self.group(key), batch, auto, seconds, partition, most)

    @rule(pick=SOME, key=SOME, batch=st.integers(1, 7), verbs=VERB_LIST, delay=DELAYS)
    def work(
        self, pick: int, key: int, batch: int, verbs: list[str | None], delay: float | None
    ) -> None:
        """Pop from a group with ready messages, then settle some, each with its own verb."""
        keys = [self.focus] if self.focus else sorted(GROUPS)
        keys = [k for k in keys if self.model.room(k)[0] and self.model.ready(k)]
        if keys and (handed := self.take(pick, keys[key % len(keys)], batch)):
            for at, verb in enumerate(verbs[: len(handed.places)]):
                if verb is not None:
                    self.end_one(pick + at, handed, at, verb, delay)

    def take(
        self, pick: int, key: GroupKey, batch: int, auto: bool = False,
        seconds: float | None = None, partition: str | None = None, most: int | None = None,
    ) -> Handed | None:  # fmt: skip
        queue, name = key
        found = self.q(pick).pop(
            queue, group=name, batch=batch, lease_seconds=seconds, auto_ack=auto,
            partition=partition, partitions=most,
        )  # fmt: skip
        return self.check_taken(key, found, batch, auto, seconds, partition, most)

    def check_taken(
        self, key: GroupKey, found: Batch[Message], batch: int, auto: bool = False,
        seconds: float | None = None, partition: str | None = None, most: int | None = None,
    ) -> Handed | None:  # fmt: skip
        """Check what a pop got, and let the model get the same."""
        model = self.model
        places = [self.place_of(message.id) for message in found]
        assert found.why == model.room(key)[1] or found
        model.check_pop(key, batch, partition, most, places)
        end = model.now + round((seconds or model.groups[key].rules.lease) * SECOND)
        for message, place in zip(found, places, strict=True):
            state, msg = model.state(key, place), model.msg(place)
            told = message.deliveries, message.failures, message.redelivered
            assert told == (state.deliveries + 1, state.failures, state.redelivered), place
            assert message.data == msg.data
            assert round(message.created_at.timestamp() * SECOND) == msg.created
            assert (message.partition, message.priority) == place.lane[1:]
        model.pop(key, places, found.token, end)
        if not found and partition is None:
            self.check_wake_up(key, found.retry_at)
        if found.token is not None:
            assert not auto
            assert round(found.expires_at.timestamp() * SECOND) == end  # type: ignore[union-attr]
            self.tokens[ids.parse_token(found.token)] = found.token
            self.batches.append(Handed(key, list(found), places))
            return self.batches[-1]
        return None

    def check_wake_up(self, key: GroupKey, told: Any) -> None:
        """The retry time of an empty pop must not be after the next message becomes ready."""
        future = copy.deepcopy(self.model)
        for time in self.model.next_ready(key):
            future.advance(time)
            if future.room(key)[0] and future.ready(key):
                assert told is not None
                assert told.timestamp() * SECOND <= time + 1
                return

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME)
    def read_a_lease_again(self, pick: int, which: int) -> None:
        batch = self.batch(which)
        if not self.known(batch.token):
            return
        try:
            found = self.q(pick).read(batch.token)
        except errors.Gone:
            assert not all(self.model.msg(place).stored for place in batch.places)
            return
        assert sorted(self.place_of(m.id) for m in found) == sorted(batch.places)
        assert [m.data for m in found] == [self.model.msg(self.place_of(m.id)).data for m in found]

    # settling

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME, mask=SOME, verb=VERB, delay=DELAYS, by=SOME)
    def settle_some(
        self, pick: int, which: int, mask: int, verb: str, delay: float | None, by: int
    ) -> None:
        batch = self.batch(which)
        chosen = batch.some(mask)
        places = [batch.places[i] for i in chosen]
        options = {"delay": delay} if verb in ("nack", "requeue") else {}
        if by % 3 == 0:
            act = getattr(self.q(pick).lease(batch.token), verb)
            told = act(*[self.id_of(place) for place in places], **options)
        else:
            act = getattr(self.q(pick), verb)
            told = act([batch.messages[i] for i in chosen], **options)
        expected = self.model.settle(batch.token, verb, places, options.get("delay"))
        self.compare(told, expected, batch.token)

    @precondition(lambda self: self.batches)
    @rule(
        pick=SOME, which=SOME, at=SOME, verb=VERB, delay=DELAYS,
        flag=st.booleans(),
    )  # fmt: skip
    def settle_one(
        self, pick: int, which: int, at: int, verb: str, delay: float | None, flag: bool
    ) -> None:
        """Settle one message; an ack may include all before it, a nack may release the rest."""
        batch = self.batch(which)
        self.end_one(pick, batch, at % len(batch.places), verb, delay, flag)

    def end_one(
        self, pick: int, batch: Handed, at: int, verb: str, delay: float | None, flag: bool = False
    ) -> None:
        place = batch.places[at]
        rest, up_to = flag and verb == "nack", flag and verb == "ack"
        delay = delay if verb in ("nack", "requeue") else None
        verdict = Verdict(verb, "broken", delay, rest=rest, up_to=up_to)  # type: ignore[arg-type]
        try:
            self.q(pick).settle_one(batch.messages[at], verdict)
            code = None
        except errors.LeaseLost as error:
            code = error.code
        known = self.known(batch.token)
        expected = self.model.settle(batch.token, verb, [place], delay, rest, up_to)
        if known:
            assert code == expected.refused.get(place)

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME, verb=VERB)
    def settle_a_whole_lease_by_its_token(self, pick: int, which: int, verb: str) -> None:
        """Messages settled before are skipped, unless there is nothing else to report."""
        batch = self.batch(which)
        try:
            told = getattr(self.q(pick).lease(batch.token), verb)()
        except errors.LeaseLost:
            assert not self.known(batch.token)
            return
        self.compare(told, self.model.settle_whole(batch.token, verb), batch.token)

    @precondition(lambda self: self.batches)
    @rule(
        pick=SOME, which=st.lists(SOME, min_size=1, max_size=2, unique=True),
        verbs=st.lists(VERB, min_size=7, max_size=7), atomic=st.booleans(),
    )  # fmt: skip
    def settle_each_its_own_way(
        self, pick: int, which: list[int], verbs: list[str], atomic: bool
    ) -> None:
        batches = {batch.token: batch for batch in map(self.batch, which)}
        if not all(map(self.known, batches)):
            return
        verdicts = [
            (message, verb)
            for batch in batches.values()
            for message, verb in zip(batch.messages, verbs, strict=False)
        ]
        told = self.q(pick).settle(verdicts, atomic=atomic)  # type: ignore[arg-type]
        trial, total = copy.deepcopy(self.model), Outcome()
        expected = list[tuple[Place, str]]()
        for batch in batches.values():
            for place, verb in zip(batch.places, verbs, strict=False):
                one = trial.settle(batch.token, verb, [place])
                expected += one.refused.items()
                total.settled, total.noop = total.settled + one.settled, total.noop + one.noop
                total.dead += one.dead
        refused = [(self.place_of(r.message_id), r.code) for r in told.refused]
        if atomic and expected:
            assert sorted(expected) == sorted(r for r in refused if r[1] != "rolled_back")
            assert (told.settled, told.noop, told.dead) == (0, 0, 0)
            return
        self.model = trial
        assert sorted(refused) == sorted(expected)
        assert (told.settled, told.noop, told.dead) == (total.settled, total.noop, total.dead)

    @precondition(lambda self: len(self.batches) > 1)
    @rule(pick=SOME, which=SOME, other=SOME, verb=VERB)
    def settle_under_a_foreign_token(self, pick: int, which: int, other: int, verb: str) -> None:
        mine, theirs = self.batch(which), self.batch(other)
        foreign = [p for p in theirs.places if p not in mine.places]
        if foreign and self.known(mine.token):
            told = getattr(self.q(pick).lease(mine.token), verb)(*map(self.id_of, foreign))
            assert {r.code for r in told.refused} == {"not_found"}
            assert (told.settled, told.noop, len(told.refused)) == (0, 0, len(foreign))
            told = getattr(self.q(pick).lease(ids.token_text(7)), verb)(*map(self.id_of, foreign))
            assert {r.code for r in told.refused} == {"invalid_lease"}
            assert (told.settled, told.noop, len(told.refused)) == (0, 0, len(foreign))

    @precondition(lambda self: self.batches)
    @rule(pick=SOME, which=SOME, seconds=st.sampled_from([None, 0.5, 60.0]))
    def extend(self, pick: int, which: int, seconds: float | None) -> None:
        batch = self.batch(which)
        known = self.known(batch.token)
        expected = self.model.extend(batch.token, seconds)
        told: int | str
        try:
            end = self.q(pick).extend(batch.messages, seconds)
            told = round(end.timestamp() * SECOND) if end else 0
        except errors.LeaseLost as error:
            told = error.code
        assert told == expected or not known

    @precondition(lambda self: self.batches)
    @rule(
        pick=SOME, which=st.lists(SOME, min_size=1, max_size=2), mask=SOME, lane=LANES,
        verb=st.sampled_from(["ack", "ack", "nack", "reject", "requeue"]),
        fails=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def transact(
        self, pick: int, which: list[int], mask: int, lane: LaneKey, verb: str, fails: bool
    ) -> None:
        """Settle and push in one transaction; a refused or repeated settle rolls back all of it."""
        lane, data = self.lane(lane), self.number()
        trial, good = copy.deepcopy(self.model), True
        transaction = self.q(pick).transaction()
        transaction.push(lane.queue, [data], partition=lane.partition, priority=lane.priority)
        placed = trial.push(lane, data, 0.0, None)[0]
        for batch in map(self.batch, which):
            if not self.known(batch.token):
                return
            chosen = batch.some(mask)
            transaction.settle([batch.messages[i] for i in chosen], Verdict(verb))  # type: ignore[arg-type]
            out = trial.settle(batch.token, verb, [batch.places[i] for i in chosen])
            good = good and not out.refused and not out.noop
        if fails:
            transaction.put("value", 1, expect=1_000)
        try:
            committed = transaction.commit()
            assert good
            assert not fails
            self.pushed(placed, committed.receipts[0][0])
            self.model = trial
        except errors.TransactionFailed:
            assert fails or not good

    # time and operators

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.advance(self.clock.now())

    @rule(key=KEYS)
    def advance_to_what_happens_next(self, key: GroupKey) -> None:
        if times := self.model.next_ready(self.group(key)):
            self.clock.advance((times[0] - self.model.now) / SECOND)
            self.model.advance(self.clock.now())

    def letters(
        self, queue: str, group: str | None, late: dict[GroupKey, set[Place]]
    ) -> list[tuple[GroupKey, Place]]:
        """Return the dead letters, without those of ended leases that are not expired yet."""
        return [
            (key, place)
            for key, place in self.model.letters
            if key[0] == queue
            and group in (None, key[1])
            and (place not in late[key] or self.model.state(key, place).kind != "dead")
        ]

    @rule(pick=SOME, queue=QUEUES, one=st.booleans(), redrive=st.booleans())
    def redrive_or_purge_dead_letters(
        self, pick: int, queue: str, one: bool, redrive: bool
    ) -> None:
        q = self.q(pick)
        late = self.rows().late(self.model.now)
        letters = self.letters(queue, "shared" if one else None, late)
        act = q.redrive if redrive else q.purge_dead
        told = act(queue, group="shared" if one else None)
        assert told == len(letters)
        names = {key: id for id, key in self.rows().groups.items()}
        for key, place in sorted(
            letters, key=lambda x: (names[x[0]], self.lane_ids[x[1].lane], x[1].seq)
        ):
            if redrive:
                self.model.redrive(key, place)
            else:
                self.model.forget(key, place, "purged")

    @rule(
        pick=SOME, key=KEYS, to=st.sampled_from(["start", "end", "sequence"]),
        sequence=st.integers(0, 20), partition=st.sampled_from([None, "A", "B"]),
    )  # fmt: skip
    def seek(self, pick: int, key: GroupKey, to: str, sequence: int, partition: str | None) -> None:
        key = self.group(key)
        lanes = self.model.lanes_of(key[0], partition)
        if not lanes:
            return
        rows = self.rows()
        bases, nexts = rows.bases(), rows.nexts(key)
        where: dict[str, Any] = {"sequence": sequence} if to == "sequence" else {"to": to}
        assert self.q(pick).seek(*key, partition=partition, **where) == len(lanes)
        for lane in lanes:
            base, head = bases[lane], len(self.model.lanes[lane])
            target = {"start": base, "end": head}.get(to, max(base, min(sequence, head)))
            self.model.seek(key, lane, target, target < nexts[lane])

    @rule(pick=SOME, queue=QUEUES, partition=st.sampled_from("AB"))
    def purge(self, pick: int, queue: str, partition: str) -> None:
        if self.model.lanes_of(queue, partition):
            told = self.q(pick).purge(queue, partition)
            assert told == self.model.purge(queue, partition)

    @precondition(lambda self: self.lane_ids)
    @rule(pick=SOME, lane=SOME, seq=SOME)
    def delete_a_message(self, pick: int, lane: int, seq: int) -> None:
        """Return any message, most often one that was delivered and is not settled."""
        key = sorted(self.lane_ids)[lane % len(self.lane_ids)]
        place = Place(key, seq % len(self.model.lanes[key]))
        groups = self.model.groups.values()
        used = {p for g in groups for p, s in g.states.items() if s.returned or s.token}
        used = {p for p in used if any(g.states[p].kind == "open" for g in groups if p in g.states)}
        if used and lane % 3:
            place = sorted(used)[seq % len(used)]
        told = self.q(pick).delete_message(place.lane.queue, self.id_of(place))
        assert told == self.model.delete(place)

    @rule(pick=SOME, key=KEYS, whole=st.booleans(), resume=st.sampled_from([False, True, True]))
    def pause_or_resume(self, pick: int, key: GroupKey, whole: bool, resume: bool) -> None:
        act = self.q(pick).resume if resume else self.q(pick).pause
        act(key[0], None if whole else key[1])
        if whole:
            self.model.paused[key[0]] = not resume
        else:
            self.model.groups[key].paused = not resume

    @rule(pick=SOME)
    def upkeep(self, pick: int) -> None:
        """No message that a group needs is trimmed; on `jobs` all others are."""
        try:
            self.q(pick).upkeep()
        except errors.NotMyTurn:
            assert len(self.sessions) > 1
            return
        rows = self.rows()
        assert not any(rows.late(self.model.now).values()), "upkeep left a lease that is over"
        for lane, there in rows.stored().items():
            for seq, msg in enumerate(self.model.lanes[lane]):
                if seq in there:
                    continue
                if msg.stored:
                    assert lane.queue == "jobs" or msg.created + 86_400 * SECOND <= self.model.now
                    assert not self.needed(Place(lane, seq)), f"{Place(lane, seq)} was trimmed"
                msg.stored = False
        for segment in rows.segments:
            lane = rows.keys[segment["lane"]]
            stop = segment["first"] + segment["count"]
            places = [Place(lane, seq) for seq in range(segment["first"], stop)]
            passed = min(c["next"] for c in rows.cursors if c["lane"] == segment["lane"]) >= stop
            if lane.queue == "jobs" and passed:
                assert any(map(self.needed, places)), f"{places} should have been trimmed"

    def needed(self, place: Place) -> bool:
        """Return whether a group has a message open, so that it must be kept."""
        groups = [self.model.groups[key] for key in self.model.readers(place.lane)]
        states = [group.states.get(place) for group in groups]
        return any(state is not None and state.kind in ("open", "leased") for state in states)

    # invariants after every step

    @invariant()
    def everything_adds_up(self) -> None:
        if self.lane_ids:
            rows = self.rows()
            late = rows.late(self.model.now)
            check_rows(rows)
            check_against(rows, self.model, self.tokens)
            for queue in ("orders", "jobs"):
                self.check_counts(queue, late)
                self.check_dead_letters(queue, late)
                self.check_leases(queue)
