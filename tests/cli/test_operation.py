"""doctor, bench, version, contexts: running Ackflow and finding it."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from typer.testing import CliRunner

import ackflow
from ackflow.broker import access_tokens
from ackflow.broker.broker import Broker
from ackflow.cli.commands import doctor
from ackflow.cli.main import app
from ackflow.server import run

from ..running import Running
from .conftest import Cli

# doctor


def levels(cli: Cli, *arguments: str) -> dict[str, str]:
    result = cli.run("doctor", "--json", *arguments)
    found = map(json.loads, result.stdout.splitlines())
    return {finding["what"]: finding["level"] for finding in found}


def test_a_sound_database_is_well(cli: Cli) -> None:
    cli.q.push("orders", 1)
    cli.q.upkeep()
    output = cli("doctor")
    assert "1 queue with 1 message" in output
    assert "error" not in output


def test_doctor_tells_what_to_do_about_dead_letters_and_pauses(dead: Cli) -> None:
    dead.q.pause("orders")
    output = dead("doctor")
    assert "4 in orders" in output
    assert "ackflow dlq summary" in output
    assert "ackflow resume" in output
    assert "warnings" in output
    assert dead.run("doctor", "--strict").exit_code == 1


def test_doctor_tells_of_old_leases_and_late_groups(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.q.push("orders", [1, 2])
    cli.q.pop("orders", group="g", consumer="worker-7")
    monkeypatch.setattr(doctor, "LONG_LEASE", 0.0)
    monkeypatch.setattr(doctor, "LONG_LAG", 0.0)
    output = cli("doctor")
    assert "worker-7 holds 1 message of orders" in output
    assert "if that consumer hangs" in output
    assert "g of orders (2 messages, oldest" in output


def test_doctor_tells_when_nobody_does_the_upkeep(
    on_file: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_file.q.push("orders", 1)
    on_file.q.pop("orders", lease_seconds=0.01)
    time.sleep(0.05)
    monkeypatch.setattr(doctor, "LATE_UPKEEP", 0.01)
    output = on_file("doctor")
    assert "upkeep has not run for" in output
    assert "ackflow serve" in output
    assert levels(on_file)["upkeep"] == "ok", "the look before took back what was over"


def test_a_file_that_is_not_there_exits_with_4(nowhere: Cli, tmp_path: Path) -> None:
    told = nowhere.fails(4, "doctor", "--url", tmp_path / "no.db")
    assert "does not exist" in told
    assert not (tmp_path / "no.db").exists()


def test_a_file_of_something_else_is_bad(nowhere: Cli, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes and no messages " * 200)
    result = nowhere.run("doctor", "--url", path)
    assert result.exit_code == 1
    assert "is not an Ackflow database" in result.stdout
    assert "error" in result.stdout


def test_a_file_of_a_newer_version_is_bad(on_file: Cli, tmp_path: Path) -> None:
    on_file.q.close()
    apsw.Connection(str(on_file.url)).pragma("user_version", 9999)
    result = on_file.run("doctor")
    assert result.exit_code == 1
    assert "schema 9999" in result.stdout
    assert "install the version" in result.stdout


def test_a_damaged_file_is_found(on_file: Cli) -> None:
    for _ in range(50):
        on_file.q.push("orders", ["x" * 2000] * 100)
    on_file.q.close()
    path = Path(str(on_file.url))
    db = apsw.Connection(str(path))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(40_000))
    result = on_file.run("doctor")
    assert result.exit_code == 1
    assert "the file is damaged" in result.stdout
    assert "restore a backup" in result.stdout
    assert "the file is damaged" not in on_file.run("doctor", "--quick").stdout


def test_a_disk_that_is_nearly_full_is_told(on_file: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500 << 20))
    assert levels(on_file)["disk"] == "warning"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    assert levels(on_file)["disk"] == "error"


def test_a_file_on_a_network_is_bad(on_file: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_filesystem", lambda _: "nfs4")
    assert levels(on_file)["file system"] == "error"


def test_a_file_whose_time_is_being_corrected_is_reported(
    on_file: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "clock" not in levels(on_file)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    assert levels(on_file)["clock"] == "warning"


def test_the_clock_of_a_server_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._clocks(0.5, 0.1).level == "ok"
    finding = doctor._clocks(-90.0, 0.1)
    assert finding.level == "warning"
    assert "1.5m behind" in finding.sentence
    assert "NTP" in finding.advice


def test_a_server_that_does_not_answer_exits_with_4(nowhere: Cli) -> None:
    told = nowhere.fails(4, "doctor", "--url", "http://127.0.0.1:9")
    assert "127.0.0.1:9" in told
    told = nowhere.fails(4, "queues", "--url", "http://127.0.0.1:9")
    assert told == "ackflow: http://127.0.0.1:9 cannot be reached: Connection refused\n"
    nowhere("context", "add", "prod", "http://127.0.0.1:9", "--use")
    assert "refused (from context prod)" in nowhere.fails(4, "queues")


# tokens


@pytest.fixture
def guarded() -> Iterator[tuple[str, str]]:
    """A server that asks for a token, and one that may only read."""
    with ackflow.connect(":memory:", upkeep=False) as q:
        q.push("orders", 1)
        assert isinstance(q.broker, Broker)
        grants = [access_tokens.grant("read-only")]
        token = q.broker.do(access_tokens.create, True, "reader", grants, None)
        running = Running(q)
        yield running.url, token
        running.stop()


def test_a_server_that_asks_for_a_token_says_how_to_give_it(
    nowhere: Cli, guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token = guarded
    told = nowhere.fails(1, "queues", "--url", url)
    assert "--token" in told
    assert "ACKFLOW_TOKEN" in told
    assert "is unknown" in nowhere.fails(1, "queues", "--url", url, "--token", "wrong")
    assert "orders" in nowhere("queues", "--url", url, "--token", token)
    monkeypatch.setenv("ACKFLOW_TOKEN", token)
    assert "orders" in nowhere("queues", "--url", url)
    told = nowhere.fails(1, "purge", "orders", "--yes", "--url", url)
    assert "does not allow" in told
    assert nowhere.run("doctor", "--url", url, "--token", "wrong").exit_code == 1


# bench


def test_bench_says_what_it_did_and_leaves_nothing(cli: Cli) -> None:
    output = cli("bench", "-n", 500, "--batch", 100, "--singles", 5)
    assert "500 messages of 200 bytes, 100 per request" in output
    assert "messages/s" in output
    assert cli.q.queues() == []
    found = cli.json("bench", "-n", 10, "--batch", 100, "--singles", 2)
    assert [m["messages"] for m in found] == [10, 10, 2]
    assert all(m["per_second"] > 0 for m in found)


def test_bench_refuses_what_makes_no_sense(on_file: Cli) -> None:
    assert "messages" in on_file.fails(2, "bench", "--messages", "0")
    told = on_file.fails(2, "bench", "-n", 100_000, "--batch", 100_000, "--size", 1 << 20)
    assert "at most 256 MiB" in told


# version and help


def test_version_tells_what_it_stands_on(nowhere: Cli) -> None:
    assert nowhere("version").startswith(f"ackflow {ackflow.__version__} (Python 3.")
    assert nowhere("--version") == f"ackflow {ackflow.__version__}\n"
    (told,) = nowhere.json("version")
    assert told["ackflow"] == ackflow.__version__
    assert set(told) == {"ackflow", "python", "sqlite"}


def test_help_tells_the_exit_codes_and_every_command_has_a_line(nowhere: Cli) -> None:
    output = nowhere("--help")
    assert "3 nothing found" in output
    for name in ("push", "pop", "why", "dlq", "doctor", "context", "serve", "token"):
        assert f" {name} " in output
    assert nowhere.run().exit_code == 2
    assert "No such command 'psuh'" in nowhere.fails(2, "psuh")


def test_completion_knows_the_queues(on_file: Cli) -> None:
    on_file.q.push("orders.eu", 1)
    on_file.q.push("bills", 1)
    words = f"ackflow --url {on_file.url} peek ord"
    env = {"_ACKFLOW_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
    found = complete(env)
    assert found.split() == ["orders.eu"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(
    nowhere: Cli, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    script = nowhere("completion", shell)
    assert f"_ACKFLOW_COMPLETE=complete_{shell}" in script
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert nowhere("completion") == script
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="ackflow")
    assert shown.stdout == script


def test_the_completion_of_an_unknown_shell_is_wrong_usage(
    nowhere: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "bash, zsh, fish" in nowhere.fails(2, "completion", "tcsh")
    monkeypatch.delenv("SHELL", raising=False)
    assert "bash, zsh, fish" in nowhere.fails(2, "completion")


def complete(env: dict[str, str]) -> str:
    return CliRunner().invoke(app, [], env=env, prog_name="ackflow").stdout


# tokens


def test_tokens_are_made_where_every_command_works(
    nowhere: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "tokens.db"
    nowhere("token", "create", "option", "--url", db)
    nowhere("--url", db, "token", "create", "before")
    nowhere("token", "create", "file", "--db", db)
    nowhere("context", "add", "prod", db)
    nowhere("token", "create", "context", "--context", "prod")
    monkeypatch.setenv("ACKFLOW_URL", str(db))
    nowhere("token", "create", "environment", "--grant", "read-only:orders.*")
    listed = nowhere.json("token", "list")
    names = [token["name"] for token in listed]
    assert names == ["option", "before", "file", "context", "environment"]
    assert listed[-1]["grants"] == ["read-only:orders.*"]
    assert not (tmp_path / "data" / "ackflow" / "ackflow.db").exists()


def test_tokens_of_a_server_are_made_on_its_file(cli: Cli, nowhere: Cli, tmp_path: Path) -> None:
    if str(cli.url).startswith("http"):
        for arguments in (["create", "ci"], ["list"], ["revoke", "ci", "-y"], ["disable", "-y"]):
            assert "managed in the database" in cli.fails(2, "token", *arguments)
    else:
        assert "exclude each other" in cli.fails(2, "token", "list", "--db", tmp_path / "other.db")
        (made,) = cli.json("token", "create", "ci")
        assert made["token"].startswith("ackflow_")


def test_only_making_a_token_makes_a_file(nowhere: Cli, tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    for arguments in (["list"], ["revoke", "ci", "-y"], ["disable", "-y"]):
        assert "does not exist" in nowhere.fails(4, "token", *arguments, "--db", path)
    assert not path.exists()


def test_ending_tokens_asks_first(on_file: Cli) -> None:
    on_file("token", "create", "ci")
    assert "give --yes" in on_file.fails(1, "token", "revoke", "ci")
    assert "give --yes" in on_file.fails(1, "token", "disable")
    assert "there is no token 'other'" in on_file.fails(3, "token", "revoke", "other")
    assert [token["revoked_at"] for token in on_file.json("token", "list")] == [None]
    assert on_file.json("token", "revoke", "ci", "--yes") == [{"revoked": "ci"}]
    assert on_file.json("token", "disable", "--yes") == [{"removed": 1}]
    assert on_file("token", "list") == "no tokens\n"


def test_a_token_ends_after_days_or_a_duration(on_file: Cli) -> None:
    for name, days, hours in (("a", "30", 720), ("b", "12h", 12)):
        on_file("token", "create", name, "--days", days)
        told = next(one for one in on_file.json("token", "list") if one["name"] == name)
        ends, made = (datetime.fromisoformat(told[at]) for at in ("expires_at", "created_at"))
        assert ends - made == timedelta(hours=hours)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--slow", "often"],
        ["serve", "--read-timeout", "10ms"],
        ["pipeline", "status", "--out", "x", "--eof-alarm-after", "10ms"],
    ],
)
def test_every_duration_is_read_the_same_way(nowhere: Cli, arguments: list[str]) -> None:
    assert "uration" in nowhere.fails(2, *arguments)


@pytest.mark.parametrize("days", ["-1", "0", "nan", "inf", "1e300"])
def test_days_that_cannot_be_are_wrong_usage(nowhere: Cli, tmp_path: Path, days: str) -> None:
    path = tmp_path / "new.db"
    told = nowhere.fails(2, "token", "create", "ci", "--days", days, "--db", path)
    assert told.startswith("ackflow: --days must be more than 0")
    assert not path.exists()


def test_what_a_token_lacks_is_told_with_its_queue() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        assert isinstance(q.broker, Broker)
        grants = [access_tokens.grant("read-write:mine"), access_tokens.grant("read-only:theirs")]
        token = q.broker.do(access_tokens.create, True, "some", grants, None)
        q.push("mine", 1)
        running = Running(q)
        some = Cli(running.url)
        told = some.fails(1, "push", "theirs", "1", "--token", token)
        assert "needs the role read-write for the queue 'theirs'" in told
        told = some.fails(1, "delete", "mine", "--yes", "--token", token)
        assert told.endswith("it needs the role admin\n")
        running.stop()


# serving


def test_what_stands_before_serve_says_which_file(
    nowhere: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str | None] = []
    monkeypatch.setattr(run, "serve", lambda config: served.append(config.db))
    nowhere("context", "add", "prod", tmp_path / "prod.db", "--use")
    nowhere("--url", "a.db", "serve")
    nowhere("serve", "--db", "b.db")
    nowhere("--context", "prod", "serve")
    nowhere("serve")
    assert served == ["a.db", "b.db", str(tmp_path / "prod.db"), None]
    assert "exclude each other" in nowhere.fails(2, "--url", "a.db", "serve", "--db", "b.db")
    assert "not another server" in nowhere.fails(2, "--url", "http://localhost:8000", "serve")
    assert len(served) == 4


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_be_is_wrong_usage(nowhere: Cli, port: int) -> None:
    assert "--port" in nowhere.fails(2, "serve", "--port", port)
    with pytest.raises(run.CannotServe, match="from 0 to 65535"):
        run.listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("db", "told"),
    [("http://localhost:8000", "not another server"), ("mysql://db", "not a file"), ("", "empty")],
)
def test_what_is_no_file_is_not_served(nowhere: Cli, db: str, told: str) -> None:
    assert told in nowhere.fails(2, "serve", "--port", 0, "--db", db)


# contexts


def test_contexts_are_saved_used_listed_and_removed(nowhere: Cli, tmp_path: Path) -> None:
    db = tmp_path / "prod.db"
    nowhere("push", "orders", "1", "--url", db)
    assert "context use prod" in nowhere("context", "add", "prod", db)
    nowhere("context", "add", "other", "https://example.org:8000", "--token", "secret")
    assert "context prod is in use" in nowhere("context", "use", "prod")
    assert "orders" in nowhere("queues")
    listed = nowhere("context", "list")
    assert "secret" not in listed
    assert ["*", "prod", str(db)] in [row.split() for row in listed.splitlines()]
    assert nowhere.json("context", "list")[1]["token"] is True
    nowhere("context", "remove", "prod")
    assert "does not exist" in nowhere.fails(4, "queues")
    mode = (tmp_path / "config" / "ackflow" / "contexts.json").stat().st_mode
    assert mode & 0o077 == 0, "it holds tokens"


def test_a_context_is_replaced_only_by_force(nowhere: Cli) -> None:
    there = ["context", "add", "prod", "https://example.org:8000"]
    nowhere(*there, "--token", "secret")
    told = nowhere.fails(1, "context", "add", "prod", "https://example.com")
    assert (
        "context prod exists: https://example.org:8000, with a token; give --force to replace it"
        in told
    )
    assert "--force" in nowhere.fails(1, *there, "--token", "another")
    assert "--force" in nowhere.fails(1, *there), "the token would be lost"
    assert nowhere.json("context", "list") == [
        {"name": "prod", "url": "https://example.org:8000", "current": False, "token": True}
    ]
    assert "and is in use" in nowhere(*there, "--token", "secret", "--use"), "nothing is lost"
    told = nowhere("context", "add", "prod", "https://example.com", "--force")
    assert "its token was removed" in told
    assert nowhere.json("context", "list")[0]["token"] is False
    assert "secret" not in told


def test_a_context_is_named_for_one_command(nowhere: Cli, tmp_path: Path) -> None:
    nowhere("push", "orders", "1", "--url", tmp_path / "a.db")
    nowhere("context", "add", "a", tmp_path / "a.db")
    assert "orders" in nowhere("queues", "--context", "a")
    assert "orders" in nowhere("--context", "a", "queues")
    nowhere("context", "use", "a")
    nowhere("context", "use", "--none")
    assert "does not exist" in nowhere.fails(4, "queues")


def test_what_is_wrong_with_a_context_is_told(nowhere: Cli, tmp_path: Path) -> None:
    assert "context 'x' not found; saved contexts: none" in nowhere.fails(3, "context", "use", "x")
    assert "context 'x' not found" in nowhere.fails(3, "queues", "--context", "x")
    assert "context 'x' not found" in nowhere.fails(3, "context", "remove", "x")
    assert "give the name of a context" in nowhere.fails(2, "context", "use")
    assert "not a file" in nowhere.fails(2, "context", "add", "x", "mysql://db")
    nowhere("context", "add", "a", "a.db", "--use")
    told = nowhere.fails(2, "queues", "--context", "a", "--url", "b.db")
    assert "exclude each other" in told
    (tmp_path / "config" / "ackflow" / "contexts.json").write_text("{")
    assert "cannot be read" in nowhere.fails(2, "queues")


# where


def test_the_option_goes_before_the_environment_and_that_before_a_context(
    nowhere: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("option", "environment", "context"):
        nowhere("push", name, "1", "--url", tmp_path / f"{name}.db")
    nowhere("push", "default", "1")
    assert nowhere.json("queues")[0]["name"] == "default"
    nowhere("context", "add", "c", tmp_path / "context.db", "--use")
    assert nowhere.json("queues")[0]["name"] == "context"
    monkeypatch.setenv("ACKFLOW_URL", str(tmp_path / "environment.db"))
    assert nowhere.json("queues")[0]["name"] == "environment"
    assert nowhere.json("queues", "--url", tmp_path / "option.db")[0]["name"] == "option"
    assert nowhere.json("--url", tmp_path / "option.db", "queues")[0]["name"] == "option"


def test_looking_never_makes_a_file(nowhere: Cli, tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    for arguments in (
        ["queues"],
        ["pop", "q"],
        ["dlq", "list"],
        ["tail", "q"],
        ["purge", "q", "-y"],
    ):
        assert "does not exist" in nowhere.fails(4, *arguments, "--url", path)
    assert not path.exists()


@pytest.mark.parametrize("url", ["mysql://x", "postgresql://", "http://", ""])
def test_a_url_that_is_none_is_told(nowhere: Cli, url: str) -> None:
    assert nowhere.fails(2, "queues", "--url", url) if url else True


def test_errors_are_json_when_asked_for(on_file: Cli) -> None:
    told: Any = json.loads(on_file.run("--json", "queues", "nothing").stderr)
    assert told["error"]["code"] == "queue_not_found"
    assert on_file.run("queues", "nothing", "--json").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["queues", "--wrong", "--json"], "--wrong"),
        (["--json", "queues", "--wrong"], "--wrong"),
        (["--wrong", "--json"], "--wrong"),
        (["--json", "nonsense"], "nonsense"),
        (["why", "orders", "--json"], "ID"),
        (["top", "--interval", "often", "--json"], "is not a duration"),
        (["pop", "orders", "-n", "0", "--json"], "--batch"),
        (["pipeline", "status", "--out", "/no/such/folder", "--json"], "database not found"),
    ],
)
def test_wrong_usage_is_json_when_asked_for(nowhere: Cli, arguments: list[str], told: str) -> None:
    result = nowhere.run(*arguments)
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert told in error["message"]
    if "database" in told:
        assert (error["code"], result.exit_code) == ("no_database", 4)
    else:
        assert (error["code"], result.exit_code) == ("usage_error", 2)


def test_a_message_that_looks_like_an_option_does_not_ask_for_json(nowhere: Cli) -> None:
    result = nowhere.run("push", "--wrong", "orders", "--", "--json")
    assert result.exit_code == 2
    assert not result.stderr.startswith("{")
