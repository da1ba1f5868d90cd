"""The rows of the broker, read directly from the database, and their invariants."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ackflow import ranges
from ackflow.store.tx import Tx

from .model import GroupKey, LaneKey, Model, Place

LEASED, WAITING, DUE = 0, 1, 2


def rows(tx: Tx, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query by column name."""
    names = sql.split(" from ")[0].removeprefix("select ").replace(" ", "").split(",")
    return [dict(zip(names, row, strict=True)) for row in tx._execute(sql, ())]


@dataclass
class Held:
    """One claimed message of one group."""

    group: GroupKey
    place: Place
    claim: dict[str, Any]


class Rows:
    """A snapshot of every table that the invariants use."""

    def __init__(self, tx: Tx) -> None:
        queues = {r["id"]: r["name"] for r in rows(tx, "select id, name from queues")}
        homes = {r["id"]: r["name"] for r in rows(tx, "select id, name from partitions")}
        self.groups: dict[int, GroupKey] = {
            r["id"]: (queues[r["queue"]], r["name"])
            for r in rows(tx, "select id, queue, name from groups")
        }
        sql = "select id, queue, partition, priority, base, head, gone, gone_to, copies from lanes"
        self.lanes = {r["id"]: r for r in rows(tx, sql)}
        self.keys = {
            id: LaneKey(queues[r["queue"]], homes[r["partition"]], r["priority"])
            for id, r in self.lanes.items()
        }
        self.cursors = rows(
            tx,
            "select lane, grp, next, blocked, partition, done, dead, skipped, purged, expired, "
            "hidden, copies from cursors",
        )
        self.claims = rows(
            tx,
            "select id, grp, lane, lo, hi, n, ranges, state, at, deliveries, failures, "
            "redelivered, lease, held from claims",
        )
        for claim in self.claims:
            packed = claim["ranges"]
            claim["lease"] = claim["lease"] or None
            claim["ranges"] = ranges.unpack(packed) if packed else [claim["lo"], claim["hi"]]
        self.tokens = {
            r["id"]: (r["token"], r["expires_at"], r["ended_at"])
            for r in rows(tx, "select id, token, expires_at, ended_at from leases")
        }
        self.segments = rows(tx, "select lane, first, count, body, data, for_group from segments")
        self.bodies = {r["id"] for r in rows(tx, "select id from bodies")}
        self.in_window = {
            group.id: tx.in_window(group.id)
            for id in self.groups
            if (group := tx.group_by_id(id)) and group.rules.max_ack_pending is not None
        }
        self.staged = [r["body"] for r in rows(tx, "select body from stages")]
        self.dead = rows(tx, "select grp, lane, counted from dead")
        self.ranges_gone = rows(tx, "select lane, lo, hi, for_group from gone order by lane, lo")

    def gone(self, lane: int) -> list[int]:
        found: list[int] = []
        for row in self.ranges_gone:
            if row["lane"] == lane:
                found = ranges.add(found, row["lo"], row["hi"])
        return found

    def held(self) -> Iterator[Held]:
        for claim in self.claims:
            for seq in ranges.numbers(claim["ranges"]):
                yield Held(self.groups[claim["grp"]], Place(self.keys[claim["lane"]], seq), claim)

    def late(self, now: int) -> dict[GroupKey, set[Place]]:
        """Return messages of leases past their end that the broker has not expired yet."""
        found: dict[GroupKey, set[Place]] = {key: set() for key in self.groups.values()}
        for held in self.held():
            if held.claim["state"] == LEASED and held.claim["at"] <= now:
                found[held.group].add(held.place)
        return found

    def bases(self) -> dict[LaneKey, int]:
        return {self.keys[id]: lane["base"] for id, lane in self.lanes.items()}

    def stored(self) -> dict[LaneKey, set[int]]:
        """Return the sequences of each lane that are in a segment."""
        found: dict[LaneKey, set[int]] = {key: set() for key in self.keys.values()}
        for s in self.segments:
            found[self.keys[s["lane"]]].update(range(s["first"], s["first"] + s["count"]))
        return found

    def nexts(self, group: GroupKey) -> dict[LaneKey, int]:
        return {
            self.keys[c["lane"]]: c["next"] for c in self.cursors if self.groups[c["grp"]] == group
        }


def check_rows(found: Rows) -> None:
    """Check what must always hold: disjoint claims, consistent cursors, no orphans."""
    claimed: dict[tuple[int, int], list[int]] = {}
    for claim in found.claims:
        where, which = (claim["grp"], claim["lane"]), claim["ranges"]
        assert which == sorted(set(which)), f"not a range set: {claim}"
        assert (claim["lo"], claim["hi"]) == (which[0], which[-1])
        assert 0 < claim["n"] == ranges.count(which) <= 1_000
        assert (claim["state"] == LEASED) == (claim["lease"] is not None)
        assert claim["state"] == DUE or claim["at"] is not None
        if claim["lease"] is not None:
            _, expires, ended = found.tokens[claim["lease"]]
            assert ended is None
            assert expires == claim["at"]
        before = claimed.setdefault(where, [])
        assert not ranges.intersection(before, which), f"claimed twice: {where} {which}"
        claimed[where] = ranges.union(before, which)
    for cursor in found.cursors:
        where = cursor["grp"], cursor["lane"]
        mine, lane = claimed.pop(where, []), found.lanes[cursor["lane"]]
        settled = sum(cursor[k] for k in ("done", "dead", "skipped", "purged", "expired", "hidden"))
        assert cursor["next"] == settled + ranges.count(mine), f"does not add up: {cursor} {mine}"
        assert (
            min(cursor[k] for k in ("done", "dead", "skipped", "purged", "expired", "hidden")) >= 0
        )
        assert lane["base"] <= cursor["next"] <= lane["head"]
        assert lane["copies"] - cursor["copies"] == _hidden_ahead(found, cursor)
        assert not mine or (lane["base"] <= mine[0] and mine[-1] <= cursor["next"])
        assert not ranges.intersection(mine, found.gone(lane["id"])), "a deleted message is claimed"
        letters = [d for d in found.dead if (d["grp"], d["lane"]) == where and d["counted"]]
        assert cursor["dead"] == len(letters)
    assert not claimed, "claims without a cursor"
    _check_segments(found)
    for grp, counted in found.in_window.items():
        out = [c["n"] for c in found.claims if c["grp"] == grp and c["lease"] and not c["held"]]
        assert counted == sum(out), f"group {grp} has {sum(out)} out, and {counted} were counted"


def _hidden_ahead(found: Rows, cursor: dict[str, Any]) -> int:
    """Count copies for other groups from the position of a cursor on, including trimmed ones."""
    lane = cursor["lane"]
    copies = [
        (s["first"], s["first"] + s["count"], s["for_group"])
        for s in found.segments
        if s["lane"] == lane
    ]
    copies += [(r["lo"], r["hi"], r["for_group"]) for r in found.ranges_gone if r["lane"] == lane]
    return sum(
        hi - max(lo, cursor["next"])
        for lo, hi, for_group in copies
        if for_group not in (None, cursor["grp"]) and hi > cursor["next"]
    )


def _check_segments(found: Rows) -> None:
    stored: dict[int, list[int]] = {id: [] for id in found.lanes}
    for segment in found.segments:
        lane, stop = segment["lane"], segment["first"] + segment["count"]
        assert not ranges.clip(stored[lane], segment["first"], stop), f"{segment} lies over another"
        stored[lane] = ranges.add(stored[lane], segment["first"], stop)
    for id, lane in found.lanes.items():
        base, head, gone = lane["base"], lane["head"], found.gone(id)
        assert (stored[id] or [head])[0] == base, f"{lane} begins with {stored[id]}"
        whole = [base, head] if base < head else []
        assert ranges.union(stored[id], gone) == whole, f"a gap in {lane}: {stored[id]} {gone}"
        assert (lane["gone"], lane["gone_to"]) == (ranges.count(gone), (gone or [0])[-1])
    rows_gone = [range(row["lo"], row["hi"]) for row in found.ranges_gone]
    assert sum(map(len, rows_gone)) == sum(lane["gone"] for lane in found.lanes.values())
    bodies = [segment["body"] for segment in found.segments if segment["body"]]
    assert all((s["body"] == 0) == (s["data"] is not None) for s in found.segments)
    kept = sorted([*bodies, *found.staged])
    assert kept == sorted(found.bodies), "bodies without a segment or stage, or the reverse"


def check_against(found: Rows, model: Model, tokens: dict[int, str]) -> None:
    """Every claimed message is in the model's state; every open message of the model exists."""
    late, seen = found.late(model.now), set()
    first_due: dict[int, int] = {}
    for held in found.held():
        claim, state = held.claim, model.state(held.group, held.place)
        seen.add((held.group, held.place))
        if held.place in late[held.group]:
            assert state.kind in ("open", "dead"), f"{held} is over, but {state}"
            continue
        counters = claim["deliveries"], claim["failures"]
        assert counters == (state.deliveries, state.failures), f"{held} {state}"
        assert bool(claim["redelivered"]) in (state.redelivered, state.returned), f"{held} {state}"
        if claim["state"] == LEASED:
            assert (state.kind, state.token) == ("leased", tokens[found.tokens[claim["lease"]][0]])
            assert claim["at"] == model.leases[str(state.token)].end
        else:
            assert state.kind == "open", f"{held} {state}"
            if claim["state"] == DUE:
                assert state.due <= model.now
            elif claim["redelivered"] == 1:
                assert state.due == claim["at"]
            else:  # delayed messages share a claim, which is processed once the first is due
                first_due[claim["id"]] = min(state.due, first_due.get(claim["id"], state.due))
    waiting = {claim["id"]: claim["at"] for claim in found.claims}
    # Earlier when the first of them was deleted: the claim is looked at once more, and delivers nothing.
    assert all(waiting[id] <= due for id, due in first_due.items()), "delayed for longer"
    for key, group in model.groups.items():
        nexts = found.nexts(key)
        for place, state in group.states.items():
            if place.seq < nexts[place.lane] and state.kind in ("open", "leased"):
                assert (key, place) in seen, f"{key} lost {place}: {state}"
    for where, messages in model.lanes.items():
        (id,) = [id for id, lane in found.keys.items() if lane == where]
        assert found.lanes[id]["head"] == len(messages)
