"""Several concurrent processes on one database file; none of them is killed."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import apsw
import pytest

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker.broker import TURN_SECONDS, poll_pause, quiet_after_change

PEER = Path(__file__).with_name("peer.py")
Start = Callable[..., "Peer"]


class Peer:
    """A process that runs one role of peer.py."""

    def __init__(self, role: str, path: Path, *more: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), role, str(path), *map(str, more)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._in = _stream(self.process.stdin)
        self._out = _stream(self.process.stdout)

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def tell(self, line: object = "go") -> None:
        print(line, file=self._in, flush=True)

    def finish(self) -> list[str]:
        """Return the rest of its output; it must exit with code 0."""
        lines = self._out.read().splitlines()
        assert self.process.wait(timeout=60) == 0
        return lines

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._in.close()
        self._out.close()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start processes on the database, and wait until each is ready."""
    started: list[Peer] = []

    def start_one(role: str, *more: object) -> Peer:
        started.append(Peer(role, path, *more))
        return started[-1]

    yield start_one
    for peer in started:
        with contextlib.suppress(BrokenPipeError):
            peer.close()


def go(*peers: Peer, word: Callable[[], object] = lambda: "go") -> None:
    """Start the work of all processes at once, when all are ready."""
    for peer in peers:
        assert peer.line() == "ready"
    said = word()
    for peer in peers:
        peer.tell(said)


def test_two_pushers_and_three_poppers_process_every_message_exactly_once(
    start: Start, path: Path
) -> None:
    pushers = [start("push", name, 400) for name in ("left", "right")]
    poppers = [start("pop") for _ in range(3)]
    go(*pushers, *poppers)
    for pusher in pushers:
        assert pusher.finish() == ["done"]
    with ackflow.connect(path) as q:
        q.push("jobs", "stop", priority=255)
        got = [line.removeprefix("got ") for popper in poppers for line in popper.finish()]
        counts = q.group_stats("jobs").counts
    assert Counter(got) == Counter(
        [f"{name}.{n}" for name in ("left", "right") for n in range(400)] + ["done"] * 3
    )
    assert (counts.done, counts.lag, counts.dead) == (800, 1, 0)


def test_each_of_several_processes_gets_its_share_of_the_work(start: Start, path: Path) -> None:
    poppers = [start("pop") for _ in range(3)]
    go(*poppers)
    with ackflow.connect(path) as q:
        for n in range(300):
            q.push("jobs", f"m{n}")
        q.push("jobs", "stop", priority=255)
        shares = [len(popper.finish()) - 1 for popper in poppers]
    assert sum(shares) == 300
    assert min(shares) > 0


def test_a_new_database_can_be_opened_by_six_processes_at_the_same_moment(
    start: Start, path: Path
) -> None:
    rounds = 40
    peers = [start("open_new", rounds) for _ in range(6)]
    go(*peers, word=lambda: time.time() + 0.1)
    said = [line for peer in peers for line in peer.finish()]
    assert [line for line in said if not line.startswith("id ")] == []
    assert len(set(said)) == 6 * rounds
    for number in range(rounds):
        with ackflow.connect(f"{path}.{number}", upkeep=False) as q:
            popped = [message.data for message in q.pop("jobs", batch=10)]
        assert sorted(popped) == sorted(peer.process.pid for peer in peers)


def test_opening_a_new_database_waits_for_another_process_that_is_creating_it(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as creator:
        creator.execute("begin immediate")
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(ackflow.connect, path)
            time.sleep(0.3)
            creator.execute("rollback")
            with opening.result() as q:
                assert len(q.push("jobs", "x")) == 1


def test_a_waiting_pop_wakes_soon_after_a_push_in_another_process(start: Start, path: Path) -> None:
    waiter = start("wait")
    go(waiter)
    delays = []
    with ackflow.connect(path) as q:
        for _ in range(5):
            assert waiter.line() == "waiting"
            time.sleep(0.1)
            q.push("jobs", time.time())
            word, _, delay = waiter.line().partition(" ")
            assert word == "woke"
            delays.append(float(delay))
    assert waiter.finish() == []
    assert max(delays) < 1.0
    assert sorted(delays)[2] < 0.2


@pytest.mark.parametrize(
    ("quiet", "pause"), [(0, 0.005), (0.25, 0.005), (0.5, 0.01), (1, 0.02), (2, 0.04), (600, 0.04)]
)
def test_polls_for_other_processes_become_rare_when_nothing_happens(
    quiet: float, pause: float
) -> None:
    assert poll_pause(quiet) == pytest.approx(pause)


def test_polls_become_frequent_again_with_the_second_write() -> None:
    quiet = quiet_after_change(600.0)
    assert poll_pause(quiet) == pytest.approx(0.01)
    assert poll_pause(quiet_after_change(quiet)) == pytest.approx(0.005)


def test_after_a_fork_the_child_is_told_and_the_parent_is_unharmed(
    start: Start, path: Path
) -> None:
    peer = start("fork")
    go(peer)
    assert peer.finish() == [
        "child forked forked forked forked forked forked",
        "child pushed 1",
        "parent popped two 1",
        "closed",
    ]
    with contextlib.closing(apsw.Connection(str(path))) as db:
        assert db.pragma("integrity_check") == "ok"
    with ackflow.connect(path, upkeep=False) as q:
        assert q.queue_stats("jobs").messages == 4
        assert q.pop("jobs", batch=2)[-1].data == "four"


def test_the_upkeep_turn_passes_on_only_when_its_time_is_over(path: Path) -> None:
    clock = VirtualClock()

    def does_a_round(session: Session) -> bool:
        session.pop("jobs", lease_seconds=1)
        clock.advance(2)
        return session._broker._round()

    with (
        ackflow.connect(path, clock=clock, upkeep=False) as first,
        ackflow.connect(path, clock=clock, upkeep=False) as second,
    ):
        first.push("jobs", ["x"] * 10)
        assert does_a_round(first)
        assert not does_a_round(second)
        assert does_a_round(first)
        clock.advance(TURN_SECONDS)
        assert does_a_round(second)
        assert not does_a_round(first)


def test_of_three_processes_one_at_a_time_does_the_upkeep(start: Start, path: Path) -> None:
    peers = [start("keep") for _ in range(3)]
    go(*peers)
    seen: list[tuple[float, str, float]] = []
    with contextlib.closing(apsw.Connection(str(path))) as db:
        while len(seen) < 200:
            assert all(peer.process.poll() is None for peer in peers)
            for (value,) in db.execute("select value from meta where key = 'upkeep'").fetchall():
                holder, until = value.split(" ")
                seen.append((time.time(), holder, int(until) / 1e6))
            time.sleep(0.01)
    for peer in peers:
        peer.tell("stop")
    for peer in peers:
        assert peer.finish() == ["done"]
    for (_, holder, until), (at, successor, _) in itertools.pairwise(seen):
        assert successor == holder or at >= until
