"""One session serves many threads, and refuses to work after a fork with a clear error."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ackflow
from ackflow import Message, Session
from ackflow.errors import SessionClosed, SessionForked

from ..running import Running

pytestmark = pytest.mark.every_store

FORKED = Path(__file__).parent / "forked.py"
SAYS = f"session_forked: {SessionForked.__doc__}"
THREADS = 8
EACH = 40


def together(act: Callable[[int], None]) -> None:
    """Run something in many threads that begin at one moment; the first error is raised."""
    ready, errors = threading.Barrier(THREADS), list[BaseException]()

    def run(number: int) -> None:
        try:
            ready.wait(20)
            act(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_push_pop_and_ack_through_one_session(q: Session) -> None:
    total, done, lock = THREADS * EACH, Counter[int](), threading.Lock()
    q.group("jobs", "g")

    def work(number: int) -> None:
        for n in range(EACH):
            q.push("jobs", number * EACH + n)
            for message in q.pop("jobs", group="g", batch=3):
                message.ack()
                with lock:
                    done[message.data] += 1

    together(work)
    for message in q.pop("jobs", group="g", batch=total):
        message.ack()
        done[message.data] += 1
    assert done == Counter(range(total))
    counts = q.group_stats("jobs", "g").counts
    assert (counts.done, counts.lag) == (total, 0)
    assert q.ack_stats().successful == total


def test_a_message_may_be_settled_in_another_thread_than_it_was_popped_in(q: Session) -> None:
    q.push("jobs", list(range(THREADS)))
    messages = q.pop("jobs", group="g", batch=THREADS)
    together(lambda number: messages[number].ack(confirm=True))
    assert q.group_stats("jobs", "g").counts.done == THREADS


def test_of_threads_that_settle_one_message_differently_one_wins(q: Session) -> None:
    q.push("jobs", 1)
    (message,) = q.pop("jobs", group="g")
    verbs = [message.ack, message.nack, message.release, message.reject] * 2
    refused: list[str] = []

    def settle(number: int) -> None:
        try:
            verbs[number]()
        except ackflow.AlreadySettled as error:
            refused.append(error.code)

    together(settle)
    assert len(refused) == THREADS - 2  # the same verb again is success
    counts = q.group_stats("jobs", "g").counts
    assert counts.done + counts.dead + counts.ready == 1


def test_transactions_of_threads_are_each_all_or_nothing(q: Session) -> None:
    q.push("jobs", list(range(THREADS * 5)))

    def move(number: int) -> None:
        for message in q.pop("jobs", group="g", batch=5):
            with q.transaction() as t:
                t.ack(message)
                t.push("results", message.data)
                t.put(f"last-{number}", message.data)

    together(move)
    found = sorted(message.data for message in q.pop("results", batch=1000))
    assert found == list(range(THREADS * 5))
    assert q.group_stats("jobs", "g").counts.done == THREADS * 5


def test_loops_and_callers_share_a_session(q: Session) -> None:
    seen: list[int] = []
    all_there = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.data)
        message.ack()
        if len(seen) >= THREADS * EACH:
            all_there.set()

    q.group("jobs", "g")
    with q.consume("jobs", handle, group="g", concurrency=2, wait=0):
        together(lambda number: [q.push("jobs", number) for _ in range(EACH)] and None)
        assert all_there.wait(60)
    assert Counter(seen) == Counter(dict.fromkeys(range(THREADS), EACH))


def test_a_session_closed_while_threads_use_it_tells_each_of_them(q: Session) -> None:
    def push_for_long(number: int) -> None:
        while True:
            q.push("jobs", number)

    def work(number: int) -> None:
        if number == 0:
            q.close()
            return
        with pytest.raises(SessionClosed):
            push_for_long(number)

    together(work)


# forks


@pytest.fixture(params=["file", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "jobs.db"
    if request.param == "file":
        yield str(path)
        return
    with ackflow.connect(path) as session:
        running = Running(session)
        yield running.url
        running.stop()


def fork(kind: str, url: str) -> tuple[dict[str, str], list[str]]:
    """What the child was told of each call, and everything else that was said."""
    done = subprocess.run(
        [sys.executable, str(FORKED), kind, url], capture_output=True, text=True, timeout=60
    )
    assert (done.stderr, done.returncode) == ("", 0)
    lines = done.stdout.splitlines()
    told = [line.split(" ", 2) for line in lines if line.startswith("child") and ": " in line]
    return {name: said for _, name, said in told}, [line for line in lines if ": " not in line]


def test_after_a_fork_every_call_says_what_is_wrong_and_the_parent_goes_on(url: str) -> None:
    told, rest = fork("plain", url)
    again = told.pop("connect", "allowed")
    assert len(told) == 13
    assert set(told.values()) == {SAYS}
    # A server may be connected again, a file that was open may not: its locks are not inherited.
    assert again.startswith(
        "allowed" if url.startswith("http") else f"session_forked: {url} was open"
    )
    assert [line for line in rest if not line.startswith("child")] == [
        "parent done 1",
        "parent stored ['one', 'two', 'gathered']",
    ]


def test_after_a_fork_an_awaitable_session_says_what_is_wrong_too(url: str) -> None:
    told, rest = fork("awaited", url)
    assert len(told) == 8
    assert set(told.values()) == {SAYS}
    assert rest == ["parent done 1"]
