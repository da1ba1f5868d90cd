"""The command line as a process: pipes, signals, terminals, exit codes, and how soon it starts."""

import os
import pty
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

import ackflow

from .conftest import command, shell
from .test_watch import on_terminal


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = str(tmp_path / "test.db")
    with ackflow.connect(path, upkeep=False) as q:
        q.push("orders", [{"n": n} for n in range(5000)])
    return path


def test_exit_codes_are_as_documented(db: str, tmp_path: Path) -> None:
    assert shell("queues", "--url", db).returncode == 0
    assert shell("purge", "orders", "--url", db).returncode == 1
    assert shell("queues", "--wrong", "--url", db).returncode == 2
    assert shell("pop", "empty", "--url", db).returncode == 3
    assert shell("queues", "--url", tmp_path / "no.db").returncode == 4


def test_a_failure_is_one_sentence(db: str) -> None:
    done = shell("queues", "nothing", "--url", db)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("ackflow: there is no queue 'nothing'")
    assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_no_error(db: str) -> None:
    for arguments in (
        ["browse", "orders", "-n", "5000"],
        ["browse", "orders", "-n", "5000", "--json"],
    ):
        with subprocess.Popen(
            command("--url", db, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout
            assert process.stderr
            process.stdout.readline()
            process.stdout.close()
            told = process.stderr.read()
        assert (process.returncode, told) == (0, b"")


def unread(*arguments: object, stream: str = "stdout") -> tuple[int, str]:
    """Run a command with a stream that has no reader: its exit code, and what the other one got."""
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if stream == "stdout" else "stdout"
    with open(writer, "wb") as closed:
        done = subprocess.run(
            command(*arguments), **{stream: closed, other: subprocess.PIPE},  # type: ignore[call-overload]
            text=True, timeout=60,
        )  # fmt: skip
    return done.returncode, getattr(done, other)


def test_a_push_goes_on_when_its_output_is_closed(db: str, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(25_000)))
    assert unread("--url", db, "push", "big", "--file", path, "--json") == (0, "")
    with ackflow.connect(db, upkeep=False) as q:
        assert q.queue_stats("big").messages == 25_000
    path.write_text("1\n2\nno json\n")
    code, told = unread("--url", db, "push", "big", "--file", path, "--json")
    assert code == 2
    assert "line 3" in told


def test_what_works_ends_its_work_when_its_output_is_closed(db: str) -> None:
    with ackflow.connect(db, upkeep=False) as q:
        q.pop("orders")[0].reject("no")
        assert unread("--url", db, "doctor", "--strict") == (1, "")
        assert unread("--url", db, "dlq", "redrive", "orders", "--all") == (0, "")
        assert q.queue_stats("orders").dead_letters == 0
        code, _ = unread("--url", db, "configure", "new", "retry_limit=7", stream="stderr")
        assert code == 0
        assert q.queue_stats("new").options.retry_limit == 7


def test_a_server_goes_on_when_its_output_is_closed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    os.close(reader)
    with (
        open(writer, "wb") as closed,
        subprocess.Popen(
            command("serve", "--db", tmp_path / "served.db", "--port", port), stdout=closed
        ) as process,
    ):
        try:
            with ackflow.connect(f"http://127.0.0.1:{port}") as q:
                q.push("orders", 1)
        finally:
            process.terminate()
    assert process.returncode == 0


def test_a_token_that_could_not_be_shown_is_told(db: str) -> None:
    code, told = unread("--url", db, "token", "create", "mine")
    assert code == 1
    assert "not printed" in told
    assert "token revoke mine" in told


def test_output_that_cannot_be_written_is_told(db: str, tmp_path: Path) -> None:
    def full(*arguments: object) -> tuple[int, str]:
        with open("/dev/full", "wb") as disk:
            done = subprocess.run(
                command("--url", db, *arguments), stdout=disk, stderr=subprocess.PIPE, text=True
            )
        return done.returncode, done.stderr

    told = "ackflow: the output could not be written: No space left on device"
    assert full("queues") == (1, f"{told}\n")
    assert full("push", "big", "1", "2", "3") == (1, f"{told}\n")
    assert full("pop", "big", "-n", "3") == (1, f"{told}; the messages were released\n")
    with ackflow.connect(db, upkeep=False) as q:
        assert q.group_stats("big").counts.ready == 3


def test_messages_popped_into_a_closed_pipe_are_given_back(db: str) -> None:
    code, told = unread("--url", db, "pop", "orders", "-n", "5000", "--ack", "--json")
    assert code == 1
    assert '"code":"output_failed"' in told
    assert "were released" in told
    with ackflow.connect(db, upkeep=False) as q:
        counts = q.group_stats("orders").counts
    assert (counts.ready, counts.leased, counts.done) == (5000, 0, 0)


def test_output_to_a_pipe_has_no_colours(db: str) -> None:
    for arguments in (["queues"], ["--help"], ["doctor"], ["top"], ["nonsense"]):
        done = shell("--url", db, *arguments, env={**os.environ, "TERM": "xterm-256color"})
        assert "\x1b" not in done.stdout + done.stderr


def test_ctrl_c_ends_quietly_with_130(db: str) -> None:
    for arguments in (
        ["pop", "empty", "--wait", "60", "--create"],
        ["tail", "orders"],
        ["push", "in", "--json"],
    ):
        process = subprocess.Popen(
            command("--url", db, *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        if arguments[0] == "pop":
            wait_for_queue(db, "empty")
        else:
            process.stdin.write(b"1\n")
            process.stdin.flush()
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        assert (process.returncode, told) == (130, b""), arguments


def wait_for_queue(db: str, name: str) -> None:
    """A pop makes its queue before it waits."""
    with ackflow.connect(db, upkeep=False) as q:
        while name not in [queue.name for queue in q.queues()]:
            time.sleep(0.02)


def test_what_trickles_in_is_pushed_as_it_comes(db: str) -> None:
    with subprocess.Popen(
        command("--url", db, "push", "drops", "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        for n in range(3):
            process.stdin.write(b"%d\n" % n)
            process.stdin.flush()
            assert b'"id"' in process.stdout.readline()
        process.stdin.close()
    assert process.returncode == 0


def test_a_key_holds_however_the_input_comes(db: str) -> None:
    lines = [b'{"n": %d}\n' % n for n in range(12_000)]
    shell("--url", db, "push", "keyed", "--key", "k", input=b"".join(lines).decode())
    with subprocess.Popen(
        command("--url", db, "push", "keyed", "--key", "k"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        for start in range(0, 12_000, 1_500):
            process.stdin.write(b"".join(lines[start : start + 1_500]))
            process.stdin.flush()
            time.sleep(0.02)
        process.stdin.close()
    assert process.returncode == 0
    with ackflow.connect(db, upkeep=False) as q:
        assert q.queue_stats("keyed").messages == 12_000


def test_commands_are_joined_by_pipes(db: str) -> None:
    line = " ".join(command("--url", db))
    done = subprocess.run(
        f"{line} pop orders -n 3 --ack --data | {line} push copies && {line} pop copies -n 9 --data",
        shell=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert '{"n":0}\n{"n":1}\n{"n":2}\n' in done.stdout


def test_the_answer_to_a_question_decides(db: str) -> None:
    assert ask(db, b"n\n") == 1
    with ackflow.connect(db, upkeep=False) as q:
        assert q.queue_stats("orders").messages == 5000
    assert ask(db, b"\x03") == 130
    assert ask(db, b"\x04") == 130
    assert ask(db, b"maybe\nno\n") == 1
    assert ask(db, b"y\n") == 0
    with ackflow.connect(db, upkeep=False) as q:
        assert q.queue_stats("orders").messages == 0


def ask(db: str, answer: bytes) -> int:
    mine, its = pty.openpty()
    # Who starts the tests in the background of a shell lets them inherit an ignored interrupt.
    hearing = ["env", "--default-signal=INT", "setsid", "-c", "-w"]
    with subprocess.Popen(
        [*hearing, *command("--url", db, "purge", "orders")], stdin=its, stdout=its, stderr=its
    ) as process:
        os.close(its)
        output = b""
        while b"[y/N]" not in output:
            output += os.read(mine, 1000)
        os.write(mine, answer)
        try:
            return process.wait(timeout=30)
        finally:
            process.kill()
            os.close(mine)


def test_nothing_to_push_from_a_terminal_is_told(db: str) -> None:
    output, code = on_terminal(db, "push", "orders", until=b"never")
    assert code == 2
    assert b"no messages to push" in output


def test_a_long_input_has_a_progress_bar_on_a_terminal(db: str, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text(f'"{"x" * 500}"\n' * 20_000)
    output, code = on_terminal(db, "push", "orders", "-f", str(path), until=b"never")
    assert code == 0
    assert b"MB" in output
    assert b"20,000 messages pushed" in output


def test_the_command_line_starts_without_what_it_does_not_need() -> None:
    code = (
        "import sys, ackflow.cli.main; "
        "print([m for m in ('rich', 'uvloop', 'urllib3', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run(
        [*command()[:1], "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_without_what_the_command_line_needs_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    done = subprocess.run(
        command("--help"), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "ackflow: the command line needs more: pip install ackflow[cli,client] (typer is missing)\n"
    )
