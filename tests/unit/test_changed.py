"""What a broker takes for a commit of another process, after which all its waiting pops look."""

from pathlib import Path

import ackflow
from ackflow.broker.broker import Broker


def changes(session: ackflow.Session) -> int:
    assert isinstance(session.broker, Broker)
    return session.broker.store.changed()


def test_own_commits_are_no_change_and_those_of_others_are(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False) as q, ackflow.connect(path, upkeep=False) as other:
        q.push("q", 1)
        before = changes(q)
        q.push("q", 2)
        assert changes(q) == before
        other.push("q", 3)
        assert changes(q) != before


def test_a_change_that_a_transaction_saw_first_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False) as q, ackflow.connect(path, upkeep=False) as other:
        q.push("q", 1)
        before = changes(q)
        other.push("q", 2)
        q.push("q", 3)
        after = changes(q)
        assert after != before
        q.push("q", 4)
        assert changes(q) == after
