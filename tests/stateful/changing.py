"""Groups whose options change while they are in use."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from .cases import KEYS, SOME
from .machine import BrokerMachine
from .model import GroupKey

RULES = st.fixed_dictionaries(
    {},
    optional={
        "ordering": st.sampled_from(["shared", "ordered", "ordered", "exclusive"]),
        "policy": st.sampled_from(["explicit", "all"]),
        "retry_limit": st.sampled_from([None, 1, 3]),
        "max_deliver": st.sampled_from([None, 1, 4]),
        "backoff": st.sampled_from([(), (0.0, 2.0), (60.0,)]),
        "max_ack_pending": st.sampled_from([None, 2, 10]),
    },
)


class ChangingMachine(BrokerMachine):
    """Messages delivered under older rules are settled by the rules that apply then."""

    @rule(pick=SOME, key=KEYS, rules=RULES)
    def change_a_group(self, pick: int, key: GroupKey, rules: dict[str, Any]) -> None:
        key = self.group(key)
        self.q(pick).group(*key, **rules)
        if "max_ack_pending" in rules:
            rules = {**rules, "window": rules["max_ack_pending"]}
            del rules["max_ack_pending"]
        group = self.model.groups[key]
        group.rules = replace(group.rules, **rules)
