"""`ackflow ui`, and the audit of what the command line does on a file."""

import getpass
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

import ackflow
from ackflow.broker import audit
from ackflow.broker.broker import Broker

from ..running import Running
from .conftest import Cli, command, shell

WAIT = 60.0


def test_ui_serves_the_dashboard_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with ackflow.connect(path, upkeep=False) as q:
        q.push("orders", [1, 2, 3])
    with subprocess.Popen(
        command("ui", "--db", str(path), "--no-browser"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stderr
            found = re.search(r"http://127.0.0.1:\d+/ui/", process.stdout.readline())
            assert found
            page = found[0]
            assert "listens on" in process.stdout.readline()
            assert "<title>Ackflow</title>" in httpx.get(page, timeout=WAIT).text
            queues = httpx.get(page.replace("/ui/", "/v1/queues"), timeout=WAIT).json()["items"]
            assert [(queue["name"], queue["stored"]) for queue in queues] == [("orders", 3)]
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_ui_of_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = shell("ui", "--db", tmp_path / "none.db", "--no-browser")
    assert done.returncode == 4
    assert "none.db does not exist" in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_ui_on_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with ackflow.connect(tmp_path / "shop.db", upkeep=False) as q:
        q.push("orders", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = shell("ui", "--db", tmp_path / "shop.db", "--no-browser", "--port", port)
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr


def entries(cli: Cli) -> list[tuple[str, str, str, str | None]]:
    """What the audit has, the newest last: who, from where, what, and the queue."""
    broker = cli.q.broker
    assert isinstance(broker, Broker)
    found = broker.look(audit.entries, None, 100)
    return [(one.who, one.origin, one.action, one.queue) for one in found[::-1]]


def test_changes_on_a_file_are_in_the_audit(on_file: Cli) -> None:
    on_file.q.push("orders", [1, 2, 3])
    for message in on_file.q.pop("orders", batch=2):
        message.reject("bad")
    on_file("configure", "orders", "max_size=77")
    on_file("configure", "orders", "max_size=77")
    on_file("pause", "orders")
    on_file("resume", "orders")
    on_file("dlq", "redrive", "orders", "--all")
    on_file("seek", "orders", "__QUEUE_MODE__", "start", "--yes")
    on_file("purge", "orders", "--yes")
    on_file("delete", "orders", "--yes")
    on_file("token", "create", "someone")
    on_file("token", "revoke", "someone", "--yes")
    on_file("push", "orders", "1")
    on_file("queues")
    me = getpass.getuser(), "cli"
    assert entries(on_file) == [
        (*me, "configure", "orders"), (*me, "pause", "orders"), (*me, "resume", "orders"),
        (*me, "redrive", "orders"), (*me, "seek", "orders"), (*me, "purge", "orders"),
        (*me, "delete queue", "orders"), (*me, "create token", None), (*me, "revoke token", None),
    ]  # fmt: skip


def test_a_change_that_is_refused_is_not_in_the_audit(on_file: Cli) -> None:
    on_file.fails(3, "pause", "nothing")
    assert entries(on_file) == []


def test_top_shows_the_figures_of_the_dashboard() -> None:
    with ackflow.connect(":memory:", upkeep=False) as q:
        q.push("orders", list(range(9)))
        held = q.pop("orders", group="billing", batch=6)
        held[0].reject("bad")
        held[1].nack("later", delay=600)
        q.push("unread", 1)
        running = Running(q)
        try:
            shown = Cli(running.url).json("top", "-i", "0.1")
            groups = httpx.get(f"{running.url}/v1/groups").json()["items"]
            queues = httpx.get(f"{running.url}/v1/queues").json()["items"]
        finally:
            running.stop()
    rows = {(row["queue"], row["group"]): row for row in shown}
    names = ("ready", "leased", "waiting", "dead", "delivered", "acked", "failed")
    for group in groups:
        row = rows[group["queue"], group["group"]]
        assert row["counts"] == {name: group[name] for name in names}
        assert row["lag"] == group["lag"]
    assert len(groups) == 1
    assert {row["queue"]: row["trouble"] for row in shown} == {
        queue["name"]: queue["trouble"] for queue in queues
    }
    assert rows["unread", None]["trouble"] == ["no group"]


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", no_name)
    assert audit.Actor.local_user() == audit.Actor("", "cli")
