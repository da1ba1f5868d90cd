"""The seventeen gaps through which an end of file or a row was lost or doubled, each closed.

Those of the router's batches need Spark and are in test_router.py: 3, 5, 6, 7, 9, 10.
"""

import logging
import os
from pathlib import Path

import pytest
from msgspec import structs

from ackflow.errors import AckflowError
from ackflow.pipeline import finisher
from ackflow.pipeline.aggregator import Aggregator
from ackflow.pipeline.declaration import Pipeline, Query
from ackflow.pipeline.eof import EofLedger, HeldEof, TableKey
from ackflow.pipeline.loader import send_tables
from ackflow.pipeline.messages import EndOfTable, ShardFolded, encode

from .conftest import SHARDS, SHOP, Bench, named, sold

MENU = TableKey("menu_items", "client1")


def eof(worker: int, workers: int = 2, batches: int = 0, number: int = 0) -> HeldEof:
    end = EndOfTable("client1", "menu_items", worker, workers, batches)
    return HeldEof(end, f"message-{worker}-{number}", "lease", number)


def test_gap_01_an_end_of_file_waits_for_the_batches_before_it() -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0, workers=1, batches=3), False)
    assert ledger.complete(MENU, handled=2) == []
    assert len(ledger.complete(MENU, handled=3)) == 1


def test_gap_02_an_end_of_file_delivered_twice_counts_once() -> None:
    ledger = EofLedger(4)
    ledger.receive(eof(0), False)
    ledger.receive(eof(0), True)
    assert ledger.complete(MENU, 0) == []
    ledger.receive(eof(1), False)
    assert {held.eof.worker for held in ledger.complete(MENU, 0)} == {0, 1}


def test_gap_02_of_two_messages_of_one_worker_the_first_is_answered_to_be_acked() -> None:
    ledger = EofLedger(4)
    assert ledger.receive(eof(0, number=1), False) is None
    again = ledger.receive(eof(0, number=2), False)
    assert again is not None
    assert again.sequence == 1


def test_gap_03_a_router_that_starts_anew_knows_what_was_handled(bench: Bench) -> None:
    bench.send_end("sales", 0, workers=1, batches=3)
    bench.handled("sales", 2)
    bench.receive(bench.ends())
    bench.later()
    bench.receive(bench.ends())
    assert bench.inside(SHOP.shards) == []
    bench.handled("sales", 3)
    bench.later()
    bench.receive(bench.ends())
    assert len(bench.inside(SHOP.shards)) == len(SHARDS)


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
    assert bench.inside(SHOP.shards) == []
    ends.forward_complete()
    assert bench.held() == 0
    assert len(bench.inside(SHOP.shards)) == len(SHARDS)


def test_gap_08_ends_of_file_are_acked_all_or_not_at_all(bench: Bench) -> None:
    bench.send_end("sales", 0)
    ends = bench.ends()
    bench.receive(ends)
    bench.later()  # the first is lost before the second comes
    bench.q.upkeep()
    bench.send_end("sales", 1)
    second = bench.q.pop(SHOP.inbox, group="router", batch=1)
    assert [m.data["worker"] for m in second] == [0]
    second[0].release()
    assert len(bench.receive(ends)) == 2
    assert bench.held() == 0
    assert len(bench.inside(SHOP.shards)) == len(SHARDS)


def test_gap_08_with_one_lease_lost_nothing_is_acked_and_nothing_forwarded(bench: Bench) -> None:
    bench.send_end("sales", 0)
    ends = bench.ends()
    (first,) = bench.receive(ends)
    bench.q.lease(first.lease).release(first.id)
    (stolen,) = bench.q.pop(SHOP.inbox, group="router")
    bench.send_end("sales", 1)
    bench.receive(ends)
    assert bench.inside(SHOP.shards) == []
    stolen.release()
    bench.receive(ends)
    assert bench.held() == 0
    assert len(bench.inside(SHOP.shards)) == len(SHARDS)


def test_gap_11_what_is_forwarded_and_its_ack_are_on_disk_together(bench: Bench) -> None:
    bench.send_end("sales", 0, workers=1)
    bench.receive(bench.ends())
    other = bench.session()
    assert other.group_stats(SHOP.inbox, "router").counts.done == 1
    assert len(other.browse(SHOP.shards).items) == len(SHARDS)


def test_gap_12_an_end_told_twice_by_one_shard_does_not_stand_for_another(bench: Bench) -> None:
    finisher = bench.finisher()
    for table in ("sales", "items"):
        for _ in SHARDS:
            bench.q.push(SHOP.ends, encode(ShardFolded("ann", table, "00", 0)), partition="ann")
    assert bench.finish(finisher) == []
    for table in ("sales", "items"):
        bench.q.push(SHOP.ends, encode(ShardFolded("ann", table, "01", 0)), partition="ann")
    assert bench.finish(finisher) == ["ann"]


def test_gap_13_a_worker_that_sends_everything_again_adds_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    data = shop_data(tmp_path)
    sent = [send_tables(bench.q, SHOP, data, worker, 2, rows=2) for worker in (0, 1)]
    there = len(bench.inside(SHOP.inbox))
    assert there == sum(sent) + 2 * len(SHOP.tables)
    assert [send_tables(bench.q, SHOP, data, worker, 2, rows=2) for worker in (0, 1)] == sent
    assert len(bench.inside(SHOP.inbox)) == there


def test_gap_13_a_worker_killed_half_way_is_made_up_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shop_data(tmp_path)
    pushes = []

    def push(queue: str, items: list[object], partition: str) -> None:
        if len(pushes) == 1:
            raise KeyboardInterrupt
        pushes.append(type(bench.q).push(bench.q, queue, items, partition=partition))

    with monkeypatch.context() as dying:
        dying.setattr(bench.q, "push", push)
        with pytest.raises(KeyboardInterrupt):
            send_tables(bench.q, SHOP, data, 0, 1, rows=2)
    send_tables(bench.q, SHOP, data, 0, 1, rows=2)
    told = [(m["table"], m.get("batch", "end")) for m in bench.inside(SHOP.inbox)]
    assert told == [("sales", 1), ("sales", 2), ("sales", "end"), ("items", 1), ("items", "end")]


def test_gap_14_a_question_without_an_answer_is_answered_with_nothing(bench: Bench) -> None:
    bench.forward([], [("sales", 0), ("items", 0)])
    bench.fold()
    assert bench.finish() == ["ann"]
    assert (bench.out / "ann" / "dear_results.json").read_text() == "[]\n"


def test_gap_14_a_finisher_killed_after_writing_writes_the_same_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.forward([sold("1", "2.50"), named("1", "Tea")], [("sales", 1), ("items", 1)])
    bench.fold()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(bench.q, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            bench.finish()
    path = bench.out / "ann" / "totals_results.json"
    first = path.read_bytes()
    assert bench.finish() == []  # what the dead one held is not back yet
    bench.later()
    assert bench.finish() == ["ann"]
    assert path.read_bytes() == first
    assert bench.q.group_stats(SHOP.folded, "finisher").counts.lag == 0


def test_gap_15_an_end_of_file_brings_no_rows_of_any_table(bench: Bench) -> None:
    bench.forward([], [("items", 0)])
    bench.fold()
    assert bench.inside(SHOP.folded) == []
    assert {(m["table"], m["pushed"]) for m in bench.inside(SHOP.ends)} == {("items", 0)}


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
    assert len(bench.inside(SHOP.shards)) == len(SHARDS)
    assert bench.held() == 0


def test_gap_17_answers_are_synced_and_then_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finisher.write_answers(tmp_path, {"totals": [{"amount": 1}]})
    whole = (tmp_path / "totals_results.json").read_bytes()

    def power_cut(_: int) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(OSError, match="power"):
        finisher.write_answers(tmp_path, {"totals": [{"amount": 2}]})
    assert (tmp_path / "totals_results.json").read_bytes() == whole


def test_an_aggregator_killed_before_its_commit_is_made_up_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.forward([sold("1", "2.50"), sold("1", "1.25")], [("sales", 2)])

    def die(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(bench.q, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            bench.fold()
    assert bench.inside(SHOP.folded) == []
    bench.later()
    bench.fold()
    assert [m["rows"] for m in bench.inside(SHOP.folded)] == [[{"item": "1", "amount": "3.75"}]]


def test_a_shard_that_was_not_told_of_every_batch_does_not_end_a_table(bench: Bench) -> None:
    bench.forward([sold("1", "2.50")], [("sales", 2)])
    worker = Aggregator(bench.q, SHOP)
    told = bench.q.pop(SHOP.shards, group="aggregators", partition="00", batch=2)
    bench.q.ack(told)  # the rows and the tick are lost by someone else's hand
    bench.fold(worker)
    assert [m["shard"] for m in bench.inside(SHOP.ends)] == ["01"]


def test_amounts_are_added_compared_and_rounded_exactly() -> None:
    exact = structs.replace(SHOP, queries=[
        Query("sums", "select item, dsum(amount) as amount from sold group by item order by item"),
        Query("whole", "select whole(amount) as n from sold where item in ('c', 'd') order by item"),
        Query("order", "select item, money(amount) as amount from sold order by compare(amount)"),
    ])  # fmt: skip
    large = "1000000000000"
    found = finisher.answers(exact, [
        sold("a", large), sold("a", "0.000000000000000001"), sold("b", large), sold("c", "-1e25"),
        sold("d", "-2"), sold("e", "0.0049999"), sold("f", "0.000000000000000001"),
    ])  # fmt: skip
    assert [row["amount"] for row in found["sums"]] == [
        "1000000000000.000000000000000001", large, "-10000000000000000000000000", "-2",
        "0.0049999", "0.000000000000000001",
    ]  # fmt: skip
    assert [row["n"] for row in found["whole"]] == ["-10000000000000000000000000", -2]
    assert "".join(row["item"] for row in found["order"]) == "cdfeba"
    assert [row["amount"] for row in found["order"]] == [-1e25, -2.0, 0.0, 0.0, 1e12, 1e12]


def test_the_log_says_what_became_of_an_end_of_file(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ackflow.pipeline")
    ledger = EofLedger(4)
    ledger.receive(eof(0, workers=1, batches=5, number=12345), False)
    ledger.complete(MENU, 0)
    ledger.receive(eof(0, workers=1, batches=5, number=12345), True)
    ledger.complete(MENU, 5)
    ledger.forwarded(MENU)
    assert caplog.messages == [
        "TABLE_EOF received: key=(TableName.MENU_ITEMS, 'client1')",
        "TABLE_EOF deferred: key=(TableName.MENU_ITEMS, 'client1') pending=5",
        "TABLE_EOF REDELIVERED (recovering state): key=(TableName.MENU_ITEMS, 'client1')",
        "TABLE_EOF -> aggregators: key=(TableName.MENU_ITEMS, 'client1') parts=4",
        "ACKing TABLE_EOF: key=(TableName.MENU_ITEMS, 'client1') delivery_tag=12345",
    ]


def shop_data(folder: Path, pipeline: Pipeline = SHOP) -> Path:
    """One client with a table in two files, of which the last is empty."""
    client = folder / "data" / "ann"
    client.mkdir(parents=True)
    head = "day,item,amount\n"
    rows = [f"2024-01-0{n} 10:00:00,{n % 2},{n}.50\n" for n in (1, 2, 3)]
    (client / "sales_1.csv").write_text(head + "".join(rows))
    (client / "sales_2.csv").write_text(head)
    (client / "items.csv").write_text("item,name\n0,Tea\n1,Coffee\n")
    return folder / "data"
