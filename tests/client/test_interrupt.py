"""Ctrl-C in a process with a consume loop: once it is a graceful stop, twice it is the end."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow.model import Counts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "orders.db")
    with ackflow.connect(path, upkeep=False) as q:
        q.group("orders", "g")
        q.push("orders", [1, 2, 3])
    return path


def started(form: str, url: str, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.client.interrupted", form, url, str(seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip()


def counts(url: str) -> Counts:
    with ackflow.connect(url, upkeep=False) as q:
        return q.group_stats("orders", "g").counts


@pytest.mark.parametrize("form", ["plain", "asyncio"])
def test_ctrl_c_once_finishes_what_is_being_handled_and_returns_the_rest(
    url: str, form: str
) -> None:
    with started(form, url, 0.3) as process:
        said = lines(process)
        assert next(said) == "begun"
        process.send_signal(signal.SIGINT)
        rest = list(said)
    assert process.returncode in (130, -signal.SIGINT)
    assert "finished" in rest
    assert "begun" not in rest
    assert any("succeeded=1" in line and "returned=2" in line for line in rest)
    found = counts(url)
    assert (found.done, found.ready, found.leased) == (1, 2, 0)


@pytest.mark.parametrize("form", ["closed", "asyncio"])
def test_ctrl_c_twice_ends_at_once(url: str, form: str) -> None:
    with started(form, url, 60) as process:
        said = lines(process)
        assert next(said) == "begun"
        process.send_signal(signal.SIGINT)
        assert next(said).startswith("the consume loop is stopping")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = list(said)
        process.wait(20)
    assert time.monotonic() - began < 10
    assert process.returncode in (130, -signal.SIGINT)
    assert "finished" not in rest
    assert counts(url).done == 0


def test_a_second_ctrl_c_while_the_first_is_logged_ends_at_once(url: str) -> None:
    with started("logging", url, 60) as process:
        said = lines(process)
        assert next(said) == "begun"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert process.returncode in (130, -signal.SIGINT)
    assert counts(url).done == 0


def test_a_process_that_ends_without_a_join_finishes_what_is_being_handled(url: str) -> None:
    with started("forgotten", url, 0.3) as process:
        rest = list(lines(process))
    assert (process.returncode, rest) == (0, ["begun", "finished"])
    found = counts(url)
    assert (found.done, found.ready, found.leased) == (1, 2, 0)
