"""The commands of a pipeline that need no Spark, the status they show, and the chart."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from ackflow.cli.main import app
from ackflow.errors import InvalidArgument, NotFound
from ackflow.pipeline import example, preflight
from ackflow.pipeline import progress as chart
from ackflow.pipeline.progress import Progress
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings, worker
from ackflow.pipeline.state import (
    ClientFinished,
    Handled,
    HeldEnds,
    TableKey,
    announce_clients,
    cancel,
    prometheus_text,
    stuck,
    table_statuses,
)

from .conftest import SHOP, Bench, generate

COFFEE = str(example("coffee_shop"))


def test_the_same_seed_generates_the_same_data(tmp_path: Path) -> None:
    for name in ("one", "two"):
        told = CliRunner().invoke(
            app, ["pipeline", "generate", "--out", str(tmp_path / name), "--transactions", "50",
                  "--clients", "2", "--seed", "7"]
        )  # fmt: skip
        assert told.exit_code == 0, told.output
    files = sorted(path.relative_to(tmp_path / "one") for path in tmp_path.glob("one/*/*.csv"))
    assert len(files) > 20
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_status_counts_batches_and_unacknowledged_ends(bench: Bench) -> None:
    bench.handled("sales", 3)
    bench.send_end("sales", 0, workers=2, blocks=3)
    ends = bench.ends()
    bench.receive(ends)
    (row,) = table_statuses(bench.q, SHOP)
    assert (row.client, row.table, row.blocks, row.held) == ("ann", "sales", 3, 1)
    assert row.state == "ends held"
    bench.send_end("sales", 1, workers=2)
    bench.receive(ends)
    (row,) = table_statuses(bench.q, SHOP)
    assert (row.held, row.state) == (0, "running")


def test_a_status_names_every_table_of_a_client_before_anything_of_it_is_handled(
    bench: Bench,
) -> None:
    announce_clients(bench.q, SHOP, ["ann"])
    found = [
        (row.client, row.table, row.blocks, row.state) for row in table_statuses(bench.q, SHOP)
    ]
    assert found == [("ann", "items", 0, "running"), ("ann", "sales", 0, "running")]


def test_who_asks_for_another_pipeline_than_the_one_that_runs_is_told(bench: Bench) -> None:
    announce_clients(bench.q, SHOP, ["ann"])
    hint = "the database also has shop: name its file with --pipeline"
    where = ["--out", str(bench.out), "--db", bench.url]
    told = CliRunner().invoke(app, ["pipeline", "status", *where])
    assert told.output == f"pipeline 'coffee' has received nothing yet; {hint}\n"
    told = CliRunner().invoke(app, ["pipeline", "cancel", "ann", *where])
    assert told.output.endswith(f"nothing was cancelled; {hint}\n")


def test_unacknowledged_ends_are_metrics_by_client_and_table(bench: Bench) -> None:
    bench.send_end("sales", 0)
    bench.receive(bench.ends())
    told = prometheus_text(table_statuses(bench.q, SHOP), SHOP).splitlines()
    where = '{client="ann",pipeline="shop",table="sales"}'
    assert f"ackflow_pipeline_eof_unacknowledged{where} 1.0" in told
    assert f"ackflow_pipeline_blocks_handled{where} 0.0" in told


def test_an_end_of_file_that_is_stuck_is_an_alarm_and_a_new_router_keeps_its_age(
    bench: Bench,
) -> None:
    bench.send_end("sales", 0)
    bench.receive(bench.ends())
    bench.later()
    bench.receive(bench.ends())
    bench.clock.advance(61)
    (row,) = stuck(table_statuses(bench.q, SHOP, alarm_after=60))
    assert row.held == 1
    assert row.oldest_seconds > 60


def test_an_alarm_and_the_rows_are_metrics(bench: Bench) -> None:
    bench.handled("sales", 3)
    bench.send_end("sales", 0, workers=1, blocks=2)
    bench.receive(bench.ends())
    told = prometheus_text(table_statuses(bench.q, SHOP), SHOP).splitlines()
    where = '{client="ann",pipeline="shop",table="sales"}'
    assert f"ackflow_pipeline_alarm{where} 1.0" in told
    assert f"ackflow_pipeline_rows_handled{where} 3.0" in told


def test_a_cancelled_client_leaves_nothing_behind(bench: Bench) -> None:
    bench.send_end("sales", 0)
    bench.handled("sales", 1)
    ends = bench.ends()
    bench.receive(ends)
    assert cancel(bench.q, SHOP, "ann") is True
    assert cancel(bench.q, SHOP, "ann") is False
    ends.poll()
    assert bench.q.group_stats(SHOP.inbox, "router").counts.lag == 0
    announce_clients(bench.q, SHOP, ["ann"])  # by a worker that starts again
    left = [value.key for value in bench.q.values(SHOP.state_key(""))]
    assert left == [SHOP.state_key("cancelled", "ann"), SHOP.state_key("held")]


def test_the_command_accepts_or_cancels_a_client(bench: Bench, tmp_path: Path) -> None:
    announce_clients(bench.q, SHOP, ["ann"])
    declared = tmp_path / "shop.py"
    declared.write_text("from tests.pipeline.conftest import SHOP as pipeline")
    command = ["pipeline", "cancel", "ann", "--out", str(bench.out), "--db", bench.url,
               "--pipeline", str(declared)]  # fmt: skip
    said = [CliRunner().invoke(app, [*command, *more]).output
            for more in (["--accept"], ["--accept"], [], [])]  # fmt: skip
    assert said == [
        "ann is accepted; its queries are answered with all blocks that arrived\n",
        "ann was already accepted\n",
        "ann is cancelled; its messages are dropped\n",
        "ann was already cancelled\n",
    ]


def test_progress_is_reported_in_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("ackflow.pipeline.progress.time.monotonic", lambda: now[0])
    told: list[str] = []
    key = TableKey("sales", "ann")
    with Progress(told.append, {"ann": {"sales": {"a.csv": 3_000}}}) as shown:
        shown.update({}, {}, 0)
        now[0] += 1
        shown.update({key: Handled(1, 1_000, 500)}, {}, 0)
        now[0] += 10
        shown.update({key: Handled(2, 2_000, 1_500)}, {"ann/sales": HeldEnds(2, 0)}, 1)
        assert shown._table({key: Handled(2, 2_000, 1_500)}, {}, 1, now[0]).row_count == 1
    assert told == [
        "1 block, 500 rows, 0 ends of file held, 500 rows/s, about 2 s left",
        "2 blocks, 1,500 rows, 2 ends of file held, 1 recovered, 136 rows/s, about 6 s left",
    ]


def test_a_client_nobody_knows_is_not_cancelled(bench: Bench) -> None:
    bench.send_end("sales", 0, client="sent")
    bench.handled("sales", 3, client="handled")
    announce_clients(bench.q, SHOP, ["folder"])
    t = bench.q.transaction()
    t.put(SHOP.state_key("done", "finished"), True)
    t.commit()
    before = bench.q.values(SHOP.state_key(""))
    with pytest.raises(NotFound, match="unknown client 'nobody'; nothing was cancelled"):
        cancel(bench.q, SHOP, "nobody")
    with pytest.raises(
        ClientFinished, match="client 'finished' is finished: its answers are already written"
    ):
        cancel(bench.q, SHOP, "finished")
    assert bench.q.values(SHOP.state_key("")) == before
    for client in ("sent", "handled", "folder"):
        assert cancel(bench.q, SHOP, client) is True


def test_started_on_finished_data_or_in_another_width_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "ann").mkdir(parents=True)
    told: list[str] = []
    settings = Settings(data=str(tmp_path / "data"), out=str(tmp_path / "out"), declaration=COFFEE)
    run = Run(settings, told.append)
    t = run._q.transaction()
    t.put(run.pipeline.state_key("done", "ann"), True)
    t.commit()
    with pytest.raises(NotFound, match=r"query1_results.json, .* is missing; start over"):
        run.run()
    (tmp_path / "data" / "bob").mkdir()
    run = Run(settings, told.append)
    announce_clients(run._q, run.pipeline, ["bob"])
    cancel(run._q, run.pipeline, "bob")
    (tmp_path / "out" / "ann").mkdir()
    for query in run.pipeline.queries:
        (tmp_path / "out" / "ann" / f"{query.name}_results.json").touch()
    assert run.run() is False
    assert "already finished" in told[0]
    assert told[1] == "cancelled, without answers: bob"
    monkeypatch.setattr(preflight, "check_spark", lambda _: None)
    late = tmp_path / "data" / "late"
    late.mkdir()
    told.clear()
    run = Run(settings, told.append)
    t = run._q.transaction()  # as the loaders of the first run did
    for client in ("ann", "bob"):
        t.put(run.pipeline.state_key("files", client), {})
    t.commit()
    assert run.run() is False
    assert run.processes == {}
    assert f"{late} came after the run began and is not part of it" in told
    assert f"every client is already finished; the answers are in {run.out}" in told
    late.rmdir()
    other = Run(structs.replace(settings, workers=5), told.append)
    with pytest.raises(
        InvalidArgument, match="began with 3 workers, 4 parts, 1048576 block_bytes;"
    ):
        other.run()
    other.close()
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(InvalidArgument, match="this run began with 3 workers"):
        worker(structs.replace(settings, workers=5), 0)


def test_a_file_where_a_folder_is_to_be_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "data" / "ann").mkdir(parents=True)
    afile = tmp_path / "afile"
    afile.touch()
    with pytest.raises(InvalidArgument, match=r"cannot create folder .*afile: File exists"):
        Run(Settings(data=str(tmp_path / "data"), out=str(afile), declaration=COFFEE))
    with pytest.raises(InvalidArgument, match=r"cannot create folder .*client1: Not a directory"):
        generate(afile, transactions=1, clients=1, seed=1)


def test_the_ticks_of_a_timeline_are_whole_numbers_and_its_labels_apart() -> None:
    drawn = chart.draw(
        [
            {"at": 20.0, "what": "progress", "handled": 65, "held": 13},
            {"at": 21.0, "what": "kill", "stage": "router"},
            {"at": 22.0, "what": "recovered", "stage": "router", "seconds": 1.0, "held": 13},
            *({"at": 23.0 + n / 10, "what": "done", "client": f"client{n}"} for n in range(6)),
        ]
    )
    texts = [node for node in ET.fromstring(drawn).iter() if node.tag.endswith("text")]
    labels = ["".join(node.itertext()) for node in texts]
    assert {"17", "34", "51", "68", "4", "8", "12", "16"} <= set(labels)
    assert "router recovered after 1.0 s, 13 redelivered" in labels
    boxes = [
        (float(node.get("x", 0)), float(node.get("y", 0)), chart.CHARACTER * len(label))
        for node, label in zip(texts, labels, strict=True)
        if label.endswith(("killed", "redelivered", "finished"))
    ]
    assert len(boxes) == 8
    for (x, y, width), (other, beside, _) in itertools.permutations(boxes, 2):
        assert y != beside or other < x or other > x + width
        assert x + width < chart.WIDTH + 4


def test_a_timeline_is_drawn_with_kills_and_recoveries() -> None:
    drawn = chart.draw([
        {"at": 0.0, "what": "start", "stage": "router"},
        {"at": 5.0, "what": "progress", "handled": 3, "held": 12},
        {"at": 6.0, "what": "kill", "stage": "router"},
        {"at": 14.0, "what": "progress", "handled": 9, "held": 4},
        {"at": 14.0, "what": "recovered", "stage": "router", "seconds": 8.0},
        {"at": 16.0, "what": "done", "client": "a<b"},
    ])  # fmt: skip
    texts = ["".join(node.itertext()) for node in ET.fromstring(drawn).iter() if node.text]
    assert "router killed" in texts
    assert "router recovered after 8.0 s" in texts
    assert "a<b finished" in texts
    assert chart.draw([]).startswith("<svg")
