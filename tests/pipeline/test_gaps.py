"""The seventeen gaps through which an end of file or a row was lost or doubled, each closed.

Those of batches and answers need Spark and are in test_application.py: 3, 5, 6, 7, 9, 10, 12, 14, 15.
"""

from pathlib import Path

import pytest

from ackflow.errors import AckflowError
from ackflow.pipeline.eof import EofLedger, HeldEof
from ackflow.pipeline.loader import send_tables
from ackflow.pipeline.state import EndOfTable, Handled, TableKey, accept, table_statuses

from .conftest import PARTS, SHOP, Bench

MENU = TableKey("menu_items", "client1")


def eof(worker: int, workers: int = 2, blocks: int = 0, number: int = 0) -> HeldEof:
    end = EndOfTable("client1", "menu_items", worker, workers, blocks, {"a.csv": blocks})
    return HeldEof(end, f"message-{worker}-{number}", "lease", number)


def test_gap_01_an_end_of_file_waits_for_the_blocks_before_it() -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0, workers=1, blocks=3), False)
    assert ledger.complete(MENU, handled=2) == []
    assert len(ledger.complete(MENU, handled=3)) == 1


def test_gap_02_an_end_of_file_delivered_twice_counts_once() -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0), False)
    ledger.receive(eof(0), True)
    assert ledger.complete(MENU, 0) == []
    ledger.receive(eof(1), False)
    assert {held.eof.worker for held in ledger.complete(MENU, 0)} == {0, 1}


def test_gap_02_of_two_messages_of_one_worker_the_first_is_returned_to_be_acked() -> None:
    ledger = EofLedger(4)
    assert ledger.receive(eof(0, number=1), False) is None
    again = ledger.receive(eof(0, number=2), False)
    assert again is not None
    assert again.sequence == 1


def test_gap_03_a_router_that_starts_anew_knows_what_was_handled(bench: Bench) -> None:
    bench.send_end("sales", 0, workers=1, blocks=3)
    bench.handled("sales", 2)
    bench.receive(bench.ends())
    bench.later()
    bench.receive(bench.ends())
    assert bench.inside(SHOP.ends) == []
    bench.handled("sales", 3)
    bench.later()
    bench.receive(bench.ends())
    assert len(bench.inside(SHOP.ends)) == PARTS


def test_gap_04_an_end_of_file_that_cannot_be_forwarded_is_not_acked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send_end("sales", 0)
    bench.send_end("sales", 1)
    ends = bench.ends()

    def fail(_: object) -> None:
        raise AckflowError("the broker is away")

    with monkeypatch.context() as broken:
        broken.setattr(bench.q, "commit", fail)
        with pytest.raises(AckflowError):
            bench.receive(ends)
    assert bench.held() == 2
    assert bench.inside(SHOP.ends) == []
    ends.forward_complete()
    assert bench.held() == 0
    assert len(bench.inside(SHOP.ends)) == PARTS


def test_gap_08_ends_of_file_are_acked_all_or_not_at_all(bench: Bench) -> None:
    bench.send_end("sales", 0)
    ends = bench.ends()
    bench.receive(ends)
    bench.later()  # the first is lost before the second comes
    bench.q.upkeep()
    bench.send_end("sales", 1)
    second = bench.q.pop(SHOP.inbox, group="router", batch=1)
    assert [m.headers["worker"] for m in second] == ["0"]
    second[0].release()
    assert len(bench.receive(ends)) == 2
    assert bench.held() == 0
    assert len(bench.inside(SHOP.ends)) == PARTS


def test_gap_08_with_one_lease_lost_nothing_is_acked_and_nothing_forwarded(bench: Bench) -> None:
    bench.send_end("sales", 0)
    ends = bench.ends()
    (first,) = bench.receive(ends)
    bench.q.lease(first.lease).release(first.id)
    (stolen,) = bench.q.pop(SHOP.inbox, group="router")
    bench.send_end("sales", 1)
    bench.receive(ends)
    assert bench.inside(SHOP.ends) == []
    stolen.release()
    bench.receive(ends)
    assert bench.held() == 0
    assert len(bench.inside(SHOP.ends)) == PARTS


def test_gap_11_what_is_forwarded_and_its_ack_are_on_disk_together(bench: Bench) -> None:
    bench.send_end("sales", 0, workers=1)
    bench.receive(bench.ends())
    other = bench.session()
    assert other.group_stats(SHOP.inbox, "router").counts.done == 1
    assert len(other.browse(SHOP.ends).items) == PARTS


def test_gap_13_a_worker_that_sends_everything_again_adds_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    data = shop_data(tmp_path)
    sent = [send_tables(bench.q, SHOP, data, worker, 2, 30) for worker in (0, 1)]
    there = inbox(bench)
    assert len(there) == sum(sent) + 2 * len(SHOP.tables)
    assert [send_tables(bench.q, SHOP, data, worker, 2, 30) for worker in (0, 1)] == sent
    assert inbox(bench) == there


def test_gap_13_a_worker_killed_half_way_is_continued(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shop_data(tmp_path)
    killed_after(bench, data, 1, monkeypatch)
    send_tables(bench.q, SHOP, data, 0, 1, 30)
    assert inbox(bench) == [
        ("sales", "block"), ("sales", "block"), ("sales", "block"), ("sales", "eof"),
        ("items", "block"), ("items", "eof"),
    ]  # fmt: skip


def test_a_file_that_comes_between_a_crash_and_the_restart_shifts_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    told: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Blocks used to be known by their number, which a file that sorts before the others shifts."""
    data = shop_data(tmp_path)
    wanted = "".join(rows_of(data / "ann" / "sales_1.csv"))
    killed_after(bench, data, 2, monkeypatch)
    assert len(inbox(bench)) == 2
    late = data / "ann" / "sales_0.csv"
    late.write_text("day,item,amount\n" + "2024-02-01 10:00:00,0,9\n" * 5)
    with (data / "ann" / "sales_1.csv").open("a") as file:
        file.write("2024-02-02 10:00:00,0,9\n")
    send_tables(bench.q, SHOP, data, 0, 1, 30)
    blocks = [m for m in bench.q.browse(SHOP.inbox, limit=1000).items if "file" in m.headers]
    sales = [bytes(m.raw).decode() for m in blocks if m.headers["table"] == "sales"]
    assert "".join(sales) == wanted
    assert f"{late} came after the run began and is not part of it" in told.messages
    assert any("24 bytes more than when the run began" in text for text in told.messages)


def test_gap_16_nothing_says_complete_before_the_end_is_forwarded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send_end("sales", 0, workers=1)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(bench.q, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            bench.receive(bench.ends())
    bench.later()
    bench.receive(bench.ends())
    assert len(bench.inside(SHOP.ends)) == PARTS
    assert bench.held() == 0


def test_more_blocks_than_announced_are_an_alarm_that_names_them_until_accepted(
    bench: Bench,
) -> None:
    bench.handled("sales", 3, file="foreign.csv")
    bench.send_end("sales", 0, workers=1, blocks=2)
    ends = bench.ends()
    bench.receive(ends)
    assert bench.inside(SHOP.ends) == []
    (row,) = [row for row in table_statuses(bench.q, SHOP) if row.table == "sales"]
    assert row.state == (
        "ALARM: unannounced blocks: foreign.csv from worker 0: 3 arrived, 0 announced"
    )
    ends.poll()
    assert bench.inside(SHOP.ends) == []
    assert accept(bench.q, SHOP, "ann") is True
    ends.poll()
    assert [end["blocks"] for end in bench.inside(SHOP.ends)] == [3] * PARTS
    assert bench.held() == 0


def test_a_surplus_names_the_file_and_the_worker_it_came_from() -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0, workers=2, blocks=2), False)
    handled = Handled(6, 0, 0, {"0": {"a.csv": 3}, "1": {"b.csv": 3}})
    assert ledger.surplus(MENU, handled) is None  # the other worker may still announce them
    ledger.receive(eof(1, workers=2, blocks=3), False)
    assert ledger.surplus(MENU, handled) == (
        "a.csv from worker 0: 3 arrived, 2 announced; b.csv from worker 1: 3 arrived, 0 announced"
    )


def test_the_log_says_what_became_of_an_end_of_file(told: pytest.LogCaptureFixture) -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0, workers=1, blocks=5, number=12345), False)
    ledger.complete(MENU, 0)
    ledger.receive(eof(0, workers=1, blocks=5, number=12345), True)
    ledger.complete(MENU, 5)
    ledger.forwarded(MENU)
    assert told.messages == [
        "TABLE_EOF received: key=(TableName.MENU_ITEMS, 'client1')",
        "TABLE_EOF deferred: key=(TableName.MENU_ITEMS, 'client1') pending=5",
        "TABLE_EOF REDELIVERED (recovering state): key=(TableName.MENU_ITEMS, 'client1')",
        "TABLE_EOF -> aggregators: key=(TableName.MENU_ITEMS, 'client1') parts=4",
        "ACKing TABLE_EOF: key=(TableName.MENU_ITEMS, 'client1') delivery_tag=12345",
    ]


def inbox(bench: Bench) -> list[tuple[str, str]]:
    found = bench.q.browse(SHOP.inbox, limit=1000).items
    return [(message.headers["table"], message.headers["kind"]) for message in found]


def rows_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)[1:]


def killed_after(bench: Bench, data: Path, pushes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send with blocks of 30 bytes, one per push, and die after some."""
    done = []

    def push(queue: str, items: list[object], partition: str) -> None:
        if len(done) == pushes:
            raise KeyboardInterrupt
        done.append(type(bench.q).push(bench.q, queue, items, partition=partition))

    with monkeypatch.context() as dying:
        dying.setattr(bench.q, "push", push)
        dying.setattr("ackflow.pipeline.loader.PUSH_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            send_tables(bench.q, SHOP, data, 0, 1, 30)


def shop_data(folder: Path) -> Path:
    """One client with a table in two files, of which the last is empty."""
    client = folder / "data" / "ann"
    client.mkdir(parents=True)
    head = "day,item,amount\n"
    rows = [f"2024-01-0{n} 10:00:00,{n % 2},{n}.50\n" for n in (1, 2, 3)]
    (client / "sales_1.csv").write_text(head + "".join(rows))
    (client / "sales_2.csv").write_text(head)
    (client / "items.csv").write_text("item,name\n0,Tea\n1,Coffee\n")
    return folder / "data"
