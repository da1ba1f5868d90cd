"""`ackflow keys`: create, list and rotate the keys that encrypt stored data."""

import pytest

from .conftest import Cli

KEY, OTHER = "11" * 32, "22" * 32


@pytest.fixture
def sealed(on_file: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    on_file.q.configure("orders", encrypted=True)
    on_file.q.push("orders", 1)
    on_file.q.push("orders", 2)
    return on_file


def test_a_key_is_created_listed_and_rotated(sealed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    new = sealed("keys", "create").strip()
    assert len(bytes.fromhex(new)) == 32
    ((old,),) = [(one["key"],) for one in sealed.json("keys", "list")]
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", f"{new},{KEY}")
    assert [(one["use"], one["rows"]) for one in sealed.json("keys", "list")] == [
        ("encrypts", 0), ("decrypts", 2)
    ]  # fmt: skip
    told = sealed("keys", "rotate")
    assert "2 rows encrypted again" in told
    assert f"no longer needed: {old}" in told
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", new)
    assert [(one["use"], one["rows"]) for one in sealed.json("keys", "list")] == [("encrypts", 2)]
    assert [m.data for m in sealed.q.pop("orders", batch=2)] == [1, 2]


def test_a_missing_key_is_named_by_its_id(sealed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ((old,),) = [(one["key"],) for one in sealed.json("keys", "list")]
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", OTHER)
    assert f"{old} (2)" in sealed.fails(1, "keys", "rotate")
    assert "not given" in sealed("keys", "list")
    monkeypatch.delenv("ACKFLOW_ENCRYPTION_KEY")
    assert "ACKFLOW_ENCRYPTION_KEY" in sealed.fails(1, "keys", "rotate")


def test_without_encryption_there_are_no_keys(
    on_file: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACKFLOW_ENCRYPTION_KEY", raising=False)
    monkeypatch.delenv("QUEEN_ENCRYPTION_KEY", raising=False)
    on_file.q.push("orders", 1)
    assert "no keys" in on_file("keys", "list")


def test_keys_are_rotated_where_the_database_is(nowhere: Cli) -> None:
    assert "give its file" in nowhere.fails(2, "keys", "rotate", "--url", "http://127.0.0.1:1")
