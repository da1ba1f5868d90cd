"""A token made by the store locates its lease; a client's own token is looked up."""

from pathlib import Path

import pytest

import ackflow
from ackflow import Session, ids
from ackflow.errors import LeaseLost
from ackflow.store.tx import Tx


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def pass_leases(q: Session, count: int) -> None:
    """Continue as if this number of leases had been granted."""

    def skip(tx: Tx) -> None:
        tx.cache.last_lease = tx.next_lease() - 1 + count

    q._broker.do(skip, False)


def lease_ids(q: Session) -> list[int]:
    return [row[0] for row in q._broker.store._execute("select id from leases order by id", ())]


def test_leases_whose_tokens_end_alike_are_distinct(path: Path) -> None:
    with ackflow.connect(path, upkeep=False) as q:
        q.push("jobs", [1, 2, 3])
        tokens = []
        for _ in range(3):
            tokens.append(q.pop("jobs").token)
            pass_leases(q, 2 * ids.TOKEN_SPAN - 1)
        first = lease_ids(q)[0]
        assert lease_ids(q) == [first + 2 * n * ids.TOKEN_SPAN for n in range(3)]
    with ackflow.connect(path, upkeep=False) as q:
        for token in (tokens[1], tokens[2], tokens[0]):
            assert q.lease(str(token)).ack().settled == 1


def test_a_token_that_only_ends_like_one_is_unknown(path: Path) -> None:
    with ackflow.connect(path, upkeep=False) as q:
        q.push("jobs", [1])
        token = ids.parse_token(str(q.pop("jobs").token))
    forged = ids.token_text(token ^ (1 << 40))
    with ackflow.connect(path, upkeep=False) as q:
        with pytest.raises(LeaseLost):
            q.lease(forged).ack()
        assert q.lease(ids.token_text(token)).ack().settled == 1


@pytest.mark.parametrize("number", [0, 1, -1, -(1 << 63), (1 << 63) - 1, 1 << 24])
def test_a_token_that_a_client_brought_finds_its_lease_again(path: Path, number: int) -> None:
    token = ids.token_text(number)
    with ackflow.connect(path, upkeep=False) as q:
        q.push("jobs", [1, 2])
        q.pop("jobs", token=token)
    with ackflow.connect(path, upkeep=False) as q:
        assert [m.data for m in q.pop("jobs", token=token)] == [1]
        assert q.lease(token).ack().settled == 1


def test_neither_kind_of_token_is_looked_for_in_every_lease(path: Path) -> None:
    with ackflow.connect(path, upkeep=False) as q:
        store = q._broker.store
        sql = store._statements
        for name, args in (("lease_with_token", (1, 1)), ("lease_by_token", (1,))):
            plan = store._execute("explain query plan " + sql[name], args)
            assert all("SEARCH" in row[3] for row in plan), plan
