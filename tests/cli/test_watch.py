"""tail and top: watching without touching."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ackflow
from ackflow import Session

from .conftest import Cli, command


def test_tail_begins_with_the_last_messages(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3])
    output = cli("tail", "orders", "-n", 2, "--count", 2)
    assert [line.split()[-1] for line in output.splitlines()] == ["2", "3"]
    assert [m["data"] for m in cli.json("tail", "orders", "--count", 3)] == [1, 2, 3]
    assert cli("tail", "orders", "--data", "--count", 3) == "1\n2\n3\n"
    assert cli.q.queue_stats("orders").groups == []


def test_tail_shows_what_is_pushed_meanwhile(cli: Cli) -> None:
    cli.q.push("orders", "old")
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.05):
            cli.q.push("orders", "new", partition="eu")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        output = cli("tail", "orders", "--last", 0, "--count", 2)
    finally:
        stop.set()
        worker.join()
    assert [line.split()[-2:] for line in output.splitlines()] == [["eu", '"new"']] * 2


def test_tail_of_a_queue_that_is_not_there_is_refused(cli: Cli) -> None:
    assert "no queue" in cli.fails(3, "tail", "nothing")


def test_tail_waits_for_a_server_that_restarts(start_process: Callable[..., Any]) -> None:
    server = start_process()
    url: str = server.url
    with ackflow.connect(url) as q:
        q.push("orders", "before")
        with subprocess.Popen(
            command("--url", url, "tail", "orders", "--data", "--count", 2),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as tail:  # fmt: skip
            assert tail.stdout is not None
            assert tail.stdout.readline() == '"before"\n'
            server.kill()
            server.process.stdout.close()
            time.sleep(0.5)
            server.start()
            q.push("orders", "after")
            assert tail.stdout.readline() == '"after"\n'
        assert tail.returncode == 0


def test_top_without_a_terminal_shows_one_table(cli: Cli) -> None:
    cli.q.push("orders", [1, 2, 3])
    cli.q.push("unread", 1)
    cli.q.pop("orders", group="g")
    head, *rows = cli("top", "--interval", "100ms").splitlines()
    assert head.split() == [
        "queue", "group", "ready", "leased", "waiting", "dead", "lag", "oldest", "in/s", "out/s",
        "state",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == ["orders", "unread"]
    assert rows[0].split()[1:7] == ["g", "2", "1", "0", "0", "3"]


def test_top_counts_what_goes_in_and_out(cli: Cli) -> None:
    cli.q.group("orders", "g")
    cli.q.push("orders", list(range(50)))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            cli.q.push("orders", [1, 2, 3])
            cli.q.ack(cli.q.pop("orders", group="g", batch=5))
            time.sleep(0.02)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        first, second = cli.json("top", "-i", "0.4", "--count", 2)
    finally:
        stop.set()
        worker.join()
    assert first["queue"] == "orders"
    assert first["in_per_second"] > 0
    assert second["out_per_second"] > 0


def test_a_bad_interval_is_told(on_file: Cli) -> None:
    assert "is not a duration" in on_file.fails(2, "top", "--interval", "often")


def test_top_draws_on_a_terminal_until_ctrl_c(on_file: Cli) -> None:
    on_file.q.push("orders", [1, 2, 3])
    output, code = on_terminal(on_file.url, "top", "-i", "0.2", until=b"orders")
    assert code == 130
    assert b"Traceback" not in output
    assert b"\x1b[?1049l" in output, "the screen is given back"


def test_q_ends_top(on_file: Cli) -> None:
    on_file.q.push("orders", [1, 2, 3])
    output, code = on_terminal(on_file.url, "top", "-i", "60", until=b"orders", press=b"xq")
    assert code == 0
    assert b"q to quit" in output
    assert b"\x1b[?1049l" in output, "the screen is given back"


def on_terminal(
    url: str | None, *arguments: str, until: bytes, press: bytes = b"\x03", columns: int = 150
) -> tuple[bytes, int]:
    """Run a command on a terminal of its own, and press Ctrl-C or other keys once it has printed
    something. The terminal has to be as it was when the command has ended.
    """
    mine, its = pty.openpty()
    process = subprocess.Popen(
        command("--url", url, *arguments), stdin=its, stdout=its, stderr=its,
        start_new_session=True, env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"},
    )  # fmt: skip
    modes = termios.tcgetattr(its)
    output = b""
    sent = False
    while process.poll() is None or select.select([mine], [], [], 0)[0]:
        if not select.select([mine], [], [], 0.02)[0]:
            continue
        output += os.read(mine, 65536)
        if not sent and until in output:
            sent = True
            if press == b"\x03":
                process.send_signal(signal.SIGINT)
            else:
                os.write(mine, press)
    assert termios.tcgetattr(its) == modes
    os.close(its)
    os.close(mine)
    return output, process.wait(timeout=30)


def test_a_table_on_a_terminal_has_colours_and_fits(on_file: Cli, tmp_path: Path) -> None:
    q: Session = on_file.q
    q.group("orders", "g", retry_limit=1)
    q.push("orders", {"text": "x" * 500})
    q.pop("orders", group="g")[0].nack("no")
    output, _ = on_terminal(on_file.url, "queues", until=b"never")
    assert b"\x1b[31m" in output, "dead letters are red"
    output, _ = on_terminal(on_file.url, "dlq", "list", until=b"never")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output.decode())
    assert max(map(len, plain.split("\r\n"))) <= 150
