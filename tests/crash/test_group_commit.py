"""Verbs that wait at the same moment share one commit, and nothing else."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

import ackflow
from ackflow import Session
from ackflow.errors import (
    InvalidArgument,
    KeyConflict,
    LeaseLost,
    SessionClosed,
    StorageBusy,
    StorageFailed,
    TransactionFailed,
)
from ackflow.store.group_commit import Writer
from ackflow.store.job import Job
from ackflow.store.sqlite import store as sqlite
from ackflow.store.tx import Tx

THREADS = 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def q(path: Path) -> Iterator[Session]:
    with ackflow.connect(path, upkeep=False) as session:
        session.configure("jobs")
        yield session


def writer_of(q: Session) -> Writer:
    return q._broker.writer


def at_once(q: Session, *calls: Callable[[], Any]) -> list[Future[Any]]:
    """Run calls in separate threads, in this order, in one group."""
    writer = writer_of(q)
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = []
        with writer.exclusively():
            for number, call in enumerate(calls, 1):
                futures.append(pool.submit(call))
                wait_until(lambda number=number: len(writer._queue) == number)  # type: ignore[misc]
    return futures


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def segments(path: Path) -> list[tuple[int, int, int]]:
    """Return the segments as another process sees them: lane, first sequence, count."""
    db = apsw.Connection(str(path))
    rows = db.execute("select lane, first, count from segments order by lane, first").fetchall()
    db.close()
    return rows


def test_pushes_from_sixteen_threads_share_commits(q: Session, path: Path) -> None:
    each = 50
    start = threading.Barrier(THREADS)
    writer = writer_of(q)
    commits, verbs = writer.commits, writer.verbs

    def push(thread: int) -> list[tuple[str, str]]:
        start.wait()
        names = [f"{thread}.{n}" for n in range(each)]
        return [(name, q.push("jobs", name)[0]) for name in names]

    with ThreadPoolExecutor(THREADS) as pool:
        told = [pair for pairs in pool.map(push, range(THREADS)) for pair in pairs]
    assert writer.verbs - verbs == THREADS * each
    assert writer.commits - commits < THREADS * each / 2
    assert len({id for _, id in told}) == THREADS * each
    with ackflow.connect(path, upkeep=False) as other:
        stored = {m.id: m.data for m in other.pop("jobs", batch=10_000)}
    assert stored == {id: name for name, id in told}


def test_each_thread_finds_its_messages_in_the_order_of_its_pushes(q: Session) -> None:
    def push(thread: int) -> None:
        for n in range(50):
            q.push("jobs", {"thread": thread, "n": n})

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(push, range(THREADS)))
    popped = [message.data for message in q.pop("jobs", batch=10_000)]
    for thread in range(THREADS):
        assert [m["n"] for m in popped if m["thread"] == thread] == list(range(50))


def test_verbs_that_wait_together_are_one_commit(q: Session) -> None:
    q.push("jobs", ["old"] * 2)
    message = q.pop("jobs")[0]
    before = writer_of(q).commits
    pushed, popped, acked, moved = at_once(
        q,
        lambda: q.push("jobs", "new"),
        lambda: q.pop("jobs", batch=10),
        message.ack,
        lambda: q.commit(q.transaction().push("other", "x").put("key", 1)),
    )
    assert writer_of(q).commits == before + 1
    assert [m.data for m in popped.result()] == ["old", "new"], "a group runs in order"
    assert popped.result()[1].id == pushed.result()[0]
    acked.result()
    assert moved.result().receipts
    assert q.group_stats("jobs").counts.done == 1


def test_neighbouring_pushes_to_one_lane_become_one_segment(q: Session, path: Path) -> None:
    receipts = at_once(q, *(lambda n=n: q.push("jobs", [n, -n]) for n in range(1, 9)))
    assert [count for _, _, count in segments(path)] == [16]
    popped = {message.id: message.data for message in q.pop("jobs", batch=100)}
    for n, receipt in enumerate(receipts, 1):
        assert [popped[id] for id in receipt.result()] == [n, -n]


def test_pushes_to_several_lanes_become_one_segment_each(q: Session, path: Path) -> None:
    receipts = at_once(
        q,
        *(lambda n=n: q.push("jobs", n, partition="ab"[n % 2], priority=n % 3) for n in range(12)),
    )
    assert [count for _, _, count in segments(path)] == [2] * 6
    popped = {message.id: message.data for message in q.pop("jobs", batch=100)}
    assert [popped[receipt.result()[0]] for receipt in receipts] == list(range(12))


def test_a_push_is_not_joined_over_a_verb_between(q: Session, path: Path) -> None:
    at_once(
        q,
        lambda: q.push("jobs", 1),
        lambda: q.pop("jobs", group="early", batch=10),
        lambda: q.push("jobs", 2),
    )
    assert [count for _, _, count in segments(path)] == [1, 1]
    assert [message.data for message in q.pop("jobs", group="early", batch=10)] == [2]


def test_an_unexpected_error_fails_its_own_verb_alone(q: Session, path: Path) -> None:
    ran: list[str] = []

    def broken(tx: Tx) -> None:
        tx.run("put_meta", "broken", "written before the error")
        ran.append("broken")
        raise ZeroDivisionError("on purpose")

    q.push("jobs", "old")
    message = q.pop("jobs")[0]
    before, bad, acked, after = at_once(
        q,
        lambda: q.push("jobs", "before"),
        lambda: q._broker.do(broken, True),
        lambda: message.ack(confirm=True),
        lambda: q.push("jobs", "after"),
    )
    with pytest.raises(ZeroDivisionError):
        bad.result()
    acked.result()
    assert ran == ["broken", "broken"], "once in the group, once to find out whose error it is"
    with ackflow.connect(path, upkeep=False) as other:
        popped = {m.id: m.data for m in other.pop("jobs", batch=10)}
        assert popped == {before.result()[0]: "before", after.result()[0]: "after"}
        assert other._broker.look(lambda tx: tx.value("get_meta", "broken")) is None


def test_an_unexpected_error_after_a_pop_does_not_deliver_twice(q: Session) -> None:
    def broken(_: Tx) -> None:
        raise ZeroDivisionError("on purpose")

    q.push("jobs", ["a", "b", "c"])
    first, bad, second = at_once(
        q,
        lambda: q.pop("jobs"),
        lambda: q._broker.do(broken, False),
        lambda: q.pop("jobs"),
    )
    assert isinstance(bad.exception(), ZeroDivisionError)
    assert [m.data for future in (first, second) for m in future.result()] == ["a", "b"]
    assert [m.deliveries for future in (first, second) for m in future.result()] == [1, 1]
    counts = q.group_stats("jobs").counts
    assert (counts.leased, counts.ready) == (2, 1)


def test_refusals_do_not_disturb_the_others_of_their_group(q: Session, path: Path) -> None:
    q.push("jobs", ["old", "gone"], key="used")
    kept, gone = q.pop("jobs", batch=2)
    gone.reject("unwanted")
    q.push("elsewhere", "x")
    token = q.pop("elsewhere", batch=1).token
    calls = at_once(
        q,
        lambda: q.push("jobs", "first"),
        lambda: q.push("jobs", "another body", key="used"),
        gone.ack,
        lambda: q.commit(q.transaction().push("jobs", "undone").ack(gone)),
        lambda: q.pop("jobs", token=token),
        kept.ack,
        lambda: q.push("jobs", "last"),
    )
    first, conflict, stale, failed, refused, acked, last = calls
    for future, error in (
        (conflict, KeyConflict),
        (stale, LeaseLost),
        (failed, TransactionFailed),
        (refused, InvalidArgument),
    ):
        assert isinstance(future.exception(), error)
    acked.result()
    with ackflow.connect(path, upkeep=False) as other:
        popped = {m.id: m.data for m in other.pop("jobs", batch=10)}
    assert popped == {first.result()[0]: "first", last.result()[0]: "last"}


def test_a_refused_push_leaves_its_neighbours_joined(q: Session, path: Path) -> None:
    q.push("other", "x", key="used")
    first, refused, repeated, last = at_once(
        q,
        lambda: q.push("jobs", 1),
        lambda: q.push("jobs", 2, key="used"),
        lambda: q.push("other", "x", key="used"),
        lambda: q.push("jobs", 3),
    )
    assert isinstance(refused.exception(), KeyConflict)
    assert len(repeated.result()) == 1
    assert sorted(count for _, _, count in segments(path)) == [1, 2]
    popped = {message.id: message.data for message in q.pop("jobs", batch=10)}
    assert popped == {first.result()[0]: 1, last.result()[0]: 3}


def test_the_same_key_twice_in_one_group_is_pushed_once(q: Session) -> None:
    first, second = at_once(
        q, lambda: q.push("jobs", "x", key="one"), lambda: q.push("jobs", "x", key="one")
    )
    assert list(first.result()) == list(second.result())
    assert len(q.pop("jobs", batch=10)) == 1


def test_interrupts_of_the_main_thread_neither_stop_the_writer_nor_repeat_the_others(
    tmp_path: Path,
) -> None:
    interrupt(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(30))
def test_interrupts_stop_nothing_on_a_busy_machine_either(tmp_path: Path, number: int) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        interrupt(tmp_path)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def interrupt(tmp_path: Path) -> None:
    """An interrupted push of the main thread may be stored or not; all others are certain."""
    script = Path(__file__).with_name("interrupted.py")
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "test.db"), "3"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    interrupts, confirmed, own, stored = map(int, ran.stdout.split())
    assert interrupts > 20
    assert confirmed + own <= stored <= confirmed + own + interrupts


def test_a_verb_that_comes_when_the_writer_has_closed_is_refused(q: Session) -> None:
    """The main thread leaves its verb to a helper thread when another thread leads."""
    writer = writer_of(q)
    writer.close()
    with writer.exclusively(), pytest.raises(SessionClosed):
        q.push("jobs", 1)


class Signal(BaseException):
    """The exception that a signal handler raises."""


@pytest.mark.parametrize("synced", [False, True])
def test_a_signal_while_a_verb_is_handed_over_leaves_nothing_behind(
    q: Session, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    writer, passed = writer_of(q), Writer._promote_next

    def raises(self: Writer, job: object) -> None:
        monkeypatch.setattr(Writer, "_promote_next", passed)
        raise Signal

    monkeypatch.setattr(Writer, "_promote_next", raises)
    ran: list[str] = []
    jobs = [Job(lambda _, n=n: ran.append(n), (), synced, on_answer=lambda _: None) for n in "ab"]
    with pytest.raises(Signal):
        writer.submit(jobs)
    q.push("jobs", "after")
    assert ran == []
    assert [message.data for message in q.pop("jobs")] == ["after"]


def test_the_main_thread_leads_itself_where_no_thread_can_be_started_any_more(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in functions that `atexit` runs, with some versions of Python."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ackflow-writer":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer, free = writer_of(q), threading.Event()

    def hold() -> None:
        with writer.exclusively():
            free.set()
            wait_until(lambda: len(writer._queue) == 1)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert free.wait(10)
        assert len(q.push("jobs", 1)) == 1
        holding.result(10)


def test_a_commit_that_cannot_be_told_is_not_done_again(
    q: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(queues: set[str]) -> None:
        raise RuntimeError("nobody there")

    monkeypatch.setattr(writer_of(q)._runner, "_on_commit", fail)
    pushed = at_once(q, *(lambda n=n: q.push("jobs", n) for n in range(3)))
    assert [len(push.result()) for push in pushed] == [1, 1, 1]
    assert sorted(m.data for m in q.pop("jobs", batch=9)) == [0, 1, 2]
    assert "a commit observer failed" in caplog.text


def test_a_refusal_is_forgotten_when_the_store_runs_the_verb_again(
    q: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does after a full disk or a lost connection before the commit."""
    store = q._broker.store  # type: ignore[attr-defined]
    transact, tries = store.transact, []

    def twice(body: Callable[[Tx], None], synced: bool) -> Tx:
        return transact(lambda tx: (body(tx), body(tx)), synced)  # type: ignore[no-any-return]

    def verb(_: Tx) -> str:
        tries.append(True)
        if len(tries) == 1:
            raise InvalidArgument("not yet")
        return "done"

    monkeypatch.setattr(store, "transact", twice)
    assert q._broker.do(verb, False) == "done"


def test_a_damaged_file_fails_the_pop_that_meets_it_and_changes_nothing(q: Session) -> None:
    q.push("jobs", [1, 2])
    q.pop("jobs")[0].nack("again")

    def damage(tx: Tx) -> None:
        for lane in tx.lanes(1):
            lane.head += 5
            tx.save_lane(lane)

    q.broker.write(damage)
    with pytest.raises(StorageFailed, match="damaged"):
        q.pop("jobs", batch=9)
    assert [m.data for m in q.pop("jobs", batch=2)] == [1, 2]


def test_a_handler_that_logs_dead_letters_may_use_the_session(q: Session) -> None:
    class Alert(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            q.push("alerts", record.getMessage())

    handler, log = Alert(), logging.getLogger("ackflow.dead")
    log.addHandler(handler)
    try:
        q.push("jobs", [1, 2])
        thread = threading.Thread(target=lambda: q.reject(q.pop("jobs"), "bad"), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        q.pop("jobs")[0].reject("worse")
    finally:
        log.removeHandler(handler)
    assert [m.data.rpartition(" ")[2] for m in q.pop("alerts", batch=9)] == ["bad", "worse"]


def test_a_file_that_is_locked_keeps_a_group_no_longer_than_one(
    q: Session, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.6)
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    began = time.monotonic()
    answers = at_once(q, *[lambda: q.push("jobs", 1) for _ in range(8)])
    assert [type(answer.exception()) for answer in answers] == [StorageBusy] * 8
    assert time.monotonic() - began < 8 * 0.6
    other.execute("rollback")
    other.close()
    q.push("jobs", "now")
    assert [m.data for m in q.pop("jobs", batch=99)] == ["now"]


def test_what_was_done_is_answered_where_no_thread_can_be_started_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(path, upkeep=False) as q:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(1_200):
            q.push("jobs", "x" * 5_000)
        assert q.queue_stats("jobs").messages == 1_200
    assert not path.with_name(path.name + "-wal").exists()


@pytest.mark.parametrize("place", [":memory:", "file"])
def test_closing_from_many_threads_while_others_read_is_clean(path: Path, place: str) -> None:
    for _ in range(20):
        session = ackflow.connect(path if place == "file" else place, upkeep=False)
        session.configure("jobs")
        raised: list[BaseException] = []

        def read(session: Session = session, raised: list[BaseException] = raised) -> None:
            try:
                while True:
                    session.queues()
            except SessionClosed:
                pass
            except BaseException as error:
                raised.append(error)

        def close(session: Session = session, raised: list[BaseException] = raised) -> None:
            try:
                session.close()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=work) for work in (read, read, close, close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert raised == []


def test_a_close_that_was_interrupted_can_be_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ackflow.connect(path, upkeep=False)
    session.push("jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(session._broker.store, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.close()
    session.close()
    assert not path.with_name(path.name + "-wal").exists()


def interrupted() -> None:
    raise KeyboardInterrupt


def test_upkeep_outlives_an_error_while_it_looks_at_other_processes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ackflow.connect(path) as session:
        failed = threading.Event()

        def changed() -> int:
            failed.set()
            raise StorageBusy("locked")

        monkeypatch.setattr(session._broker.store, "changed", changed)
        waiting = threading.Thread(target=session.pop, args=("jobs",), kwargs={"wait": 0.2})
        waiting.start()
        assert failed.wait(10)
        waiting.join()
        assert session._broker._thread.is_alive()
