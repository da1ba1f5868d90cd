"""Inputs of the state machine: groups under test, and ways to call the verbs."""

from hypothesis import strategies as st

from ackflow import Message

from .model import VERBS, GroupKey, LaneKey, Place, Rules

HISTORY = 600
GROUPS: dict[GroupKey, Rules] = {
    ("orders", "shared"): Rules(retry_limit=3, max_deliver=4),
    ("orders", "ordered"): Rules("ordered", lease=20.0, retry_limit=2, max_deliver=None),
    ("orders", "exclusive"): Rules("exclusive", retry_limit=None, max_deliver=None),
    ("orders", "window"): Rules(lease=10.0, max_deliver=5, backoff=(1.0, 5.0, 60.0), window=4),
    ("orders", "all"): Rules(policy="all", max_deliver=2),
    ("jobs", "shared"): Rules(lease=300.0),
    ("jobs", "ordered"): Rules("ordered", max_deliver=3, backoff=(0.0, 2.0)),
}
DELAYS = st.sampled_from([None, None, 0.0, 3.0, 40.0])
QUEUES = st.sampled_from(["orders", "jobs"])
KEYS = st.sampled_from(sorted(GROUPS))
SOME = st.integers(0, 1 << 16)
LANES = st.builds(LaneKey, QUEUES, st.sampled_from("AABC"), st.sampled_from([0, 0, 1, 2]))
ITEMS = st.tuples(LANES, DELAYS, st.sampled_from([None, None, None, "t1", "t2"]))
VERB = st.sampled_from(VERBS)
VERB_LIST = st.lists(st.sampled_from([None, *VERBS, "nack", "release"]), min_size=7, max_size=7)
FOCUS = st.sampled_from([None] * 4 + sorted(GROUPS))
SECONDS = st.sampled_from([0.001, 0.5, 1.0, 2.5, 5.0, 11.0, 31.0, 61.0, 400.0, 90_000.0])


class Handed:
    """A batch as delivered, with the places of its messages."""

    def __init__(self, key: GroupKey, messages: list[Message], places: list[Place]) -> None:
        self.key = key
        self.messages = messages
        self.places = places
        self.token = messages[0].token or ""

    def some(self, mask: int) -> list[int]:
        """Return the messages that a mask selects, by their index in the batch."""
        return [i for i in range(len(self.places)) if mask >> i & 1] or [0]
