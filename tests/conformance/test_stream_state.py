"""The state of streams on every store: asked for by key, by prefix and by the end of its window."""

import pytest

from ackflow import Session
from ackflow.dialects.queen.verbs.streams import Cycle, Query, Wanted, cycle, get_state, register

pytestmark = pytest.mark.parametrize("open_session", ["memory", "postgres"], indirect=True)


def test_state_is_asked_for_by_key_prefix_and_the_end_of_its_window(q: Session) -> None:
    q.push("orders", 1)
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, "Default").id, False)
    query = q.broker.do(register, True, "totals", Query("", "h", "orders"), False).query.id
    state: list[tuple[str, bytes | None]] = [
        ("tumb:60\x1fa", b'{"windowEnd":1000}'), ("tumb:60\x1fb", b'{"windowEnd":2000}'),
        ("tumb:60\x1fc", b"[1]"), ("tumb:600\x1fa", b'{"windowEnd":1000}'),
    ]  # fmt: skip
    q.broker.do(cycle, True, Cycle(query, home, state))

    def keys(**asked: object) -> list[str]:
        wanted = Wanted(**asked)  # type: ignore[arg-type]
        return [row[0] for row in q.broker.look(get_state, query, home, wanted).rows]

    everything = [key for key, _ in state]
    assert keys() == everything
    assert keys(prefix="tumb:60\x1f") == everything[:3]
    assert keys(prefix="tumb:60\x1f", ripe_at=1999.0) == everything[:1]
    assert keys(ripe_at=1000.0) == [everything[0], everything[3]]
    assert keys(keys=[everything[3], everything[0]], prefix="tumb:600") == everything[3:]
    assert keys(keys=everything[:2], ripe_at=1000.0) == everything[:1]


def test_windows_of_a_partition_are_closed_idle_only_when_its_messages_are_done(q: Session) -> None:
    q.push("orders", 1)
    home = q.broker.do(lambda tx: tx.partition(tx.queue("orders").id, "Default").id, False)
    query = q.broker.do(register, True, "totals", Query("", "h", "orders"), False).query.id
    q.broker.do(cycle, True, Cycle(query, home, [("w", b'{"windowEnd":1000}')]))

    def idle() -> bool:
        ripe = q.broker.look(get_state, query, home, Wanted(ripe_at=1000.0)).rows
        done = q.broker.do(cycle, True, Cycle(query, home, [("w", None), ("w", b"{}")]))
        q.broker.do(cycle, True, Cycle(query, home, [("w", b'{"windowEnd":1000}')]))
        assert done.skipped is not bool(ripe)
        return bool(ripe)

    assert idle()  # the query has not begun to read
    (message,) = q.pop("orders", group="streams.totals")
    assert not idle()
    message.release()
    assert not idle()
    for message in q.pop("orders", group="streams.totals"):
        message.ack()
    assert idle()
    q.push("orders", 2, partition="other")
    assert idle()
    q.push("orders", 2)
    assert not idle()
