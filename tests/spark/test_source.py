"""The stream source in real Spark: what it reads, when it acknowledges, what it refuses."""

import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ackflow import Item
from tests.running import Running

from .conftest import Lab


def data(batches: list[list[object]]) -> list[int]:
    return sorted(int(row.payload) for rows in batches for row in rows)  # type: ignore[attr-defined]


def test_every_column_of_a_message_is_there(lab: Lab) -> None:
    given = Item(data=b"\x00raw", headers={"h": "v"}, transaction_id="t-1")
    ids = lab.q.push("in", ["plain"], partition="eu", priority=3)
    lab.q.push("in", [given], partition="eu", priority=3)
    ((plain, binary),) = lab.collect(lab.read())
    message = lab.q.message("in", ids[0])
    assert plain.asDict() == {  # type: ignore[attr-defined]
        "id": ids[0], "queue": "in", "partition": "eu", "priority": 3, "sequence": 0,
        "payload": b'"plain"', "headers": {}, "transaction_id": ids[0],
        "created_at": message.created_at.astimezone().replace(tzinfo=None),
        "deliveries": 1, "redelivered": False, "lease": plain.lease,  # type: ignore[attr-defined]
    }  # fmt: skip
    assert (binary.payload, binary.headers) == (b"\x00raw", {"h": "v"})  # type: ignore[attr-defined]
    assert binary.transaction_id == "t-1"  # type: ignore[attr-defined]


def test_batches_are_limited_and_the_last_one_is_acknowledged(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))
    batches = lab.collect(lab.read(maxRowsPerTrigger=4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert data(batches) == list(range(10))
    assert lab.counts().done == 10


def test_available_now_stops_at_what_was_there_when_it_began(lab: Lab) -> None:
    """What is pushed meanwhile is left, also when it would be served first."""
    lab.q.push("in", [1, 2, 3], priority=5)
    seen: list[list[int]] = []

    def push_more(frame: DataFrame, _: int) -> None:
        lab.q.push("in", [9, 9], priority=0)
        seen.append([int(row.payload) for row in frame.collect()])

    lab.each(lab.read(maxRowsPerTrigger=2), push_more)
    assert seen == [[1, 2], [3]]
    assert (lab.counts().done, lab.counts().ready) == (3, 4)


def test_only_the_columns_of_a_given_schema_are_read(lab: Lab) -> None:
    lab.q.push("in", [{"n": 1}], partition="eu")
    reader = lab.spark.readStream.format("ackflow").option("url", lab.url).option("queue", "in")
    frame = reader.schema("partition STRING, payload STRUCT<n: INT>").load()
    ((row,),) = lab.collect(frame)
    assert row.asDict(recursive=True) == {"partition": "eu", "payload": {"n": 1}}  # type: ignore[attr-defined]
    for wrong, sentence in {
        "lane STRING": "no column 'lane'; it has id, queue",
        "sequence STRING": "the column 'sequence' is BIGINT, not string",
    }.items():
        with pytest.raises(StreamingQueryException, match=sentence):
            lab.collect(reader.schema(wrong).load(), wrong)


def test_a_checkpoint_without_its_metadata_is_refused_by_spark(lab: Lab) -> None:
    """A new query id would publish a batch twice; a new checkpoint reads on where the group is."""
    lab.q.push("in", [1])
    lab.collect(lab.read(), "c")
    for name in ("metadata", ".metadata.crc"):
        Path(lab.checkpoint("c"), name).unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="STREAMING_CHECKPOINT_MISSING_METADATA_FILE"):
        lab.collect(lab.read(), "c")
    lab.q.push("in", [2])
    assert data(lab.collect(lab.read(), "new")) == [2]


@pytest.mark.inner
def test_a_query_that_ends_and_starts_again_reads_on(lab: Lab) -> None:
    lab.q.push("in", [1, 2])
    assert data(lab.collect(lab.read())) == [1, 2]
    assert lab.collect(lab.read()) == []
    lab.q.push("in", [3])
    assert data(lab.collect(lab.read())) == [3]
    assert lab.counts().done == 3


def test_an_idle_query_acknowledges_its_last_batch_and_goes_on(lab: Lab) -> None:
    lab.q.push("in", [1, 2])
    lab.q.group("in", "g")
    writer = lab.read().writeStream.format("noop").option("checkpointLocation", lab.checkpoint("c"))
    query = writer.start()
    try:
        for done in (2, 3):
            deadline = time.monotonic() + 60
            while lab.counts().done < done and time.monotonic() < deadline:
                time.sleep(0.05)
            assert lab.counts().done == done
            lab.q.push("in", [3])
    finally:
        query.stop()


def test_many_lanes_are_read_in_parallel(lab: Lab) -> None:
    for n in range(40):
        lab.q.push("in", list(range(n * 1000, n * 1000 + 1000)), partition=f"p{n}")
    seen: list[tuple[int, int]] = []

    def look(frame: object, _: int) -> None:
        rows = frame.select(F.spark_partition_id().alias("task"), "payload").collect()  # type: ignore[attr-defined]
        seen.extend((row.task, int(row.payload)) for row in rows)

    lab.each(lab.read(parallelism=4), look)
    assert sorted(value for _, value in seen) == list(range(40_000))
    assert len({task for task, _ in seen}) == 4


def test_two_queries_of_two_groups_each_get_everything(lab: Lab) -> None:
    lab.q.push("in", list(range(5)))
    for group in ("g", "h"):
        assert data(lab.collect(lab.read(group=group), group)) == list(range(5))
    assert lab.counts(group="h").done == lab.counts(group="g").done == 5


def test_two_queries_of_one_group_share(lab: Lab) -> None:
    lab.q.push("in", list(range(50)))
    names = ["a", "b"]
    queries = [
        lab.read(maxRowsPerTrigger=10)
        .select("payload")
        .writeStream.format("ackflow")
        .option("url", lab.url)
        .option("queue", "out")
        .option("checkpointLocation", lab.checkpoint(name))
        .trigger(availableNow=True)
        .start()
        for name in names
    ]
    for query in queries:
        query.awaitTermination()
    assert sorted(int(x) for x in lab.out()) == list(range(50))  # type: ignore[call-overload]
    assert lab.counts().done == 50


def test_one_query_reads_several_queues(lab: Lab) -> None:
    lab.q.push("in", [1, 2])
    lab.q.push("other", [3])
    both = lab.read().union(lab.read("other"))
    assert data(lab.collect(both)) == [1, 2, 3]
    assert (lab.counts().done, lab.counts("other").done) == (2, 1)


def test_a_payload_can_be_text(lab: Lab) -> None:
    lab.q.push("in", [{"a": 1}, "ö"])
    ((one, two),) = lab.collect(lab.read(payload="string"))
    assert (one.payload, two.payload) == ('{"a":1}', '"ö"')  # type: ignore[attr-defined]


SCHEMA = "id INT, name STRING, at TIMESTAMP, tags ARRAY<STRING>, more STRUCT<x: DOUBLE>"


def test_a_payload_is_parsed_by_a_schema(lab: Lab) -> None:
    row = {"id": 1, "name": "a", "at": "2026-01-02T03:04:05Z", "tags": ["x"], "more": {"x": 1.5}}
    lab.q.push("in", [row, {"id": 2, "unknown": True}])
    ((one, two),) = lab.collect(lab.read(payloadSchema=SCHEMA).select("payload.*"))
    assert (one.id, one.name, one.tags, one.more.x) == (1, "a", ["x"], 1.5)  # type: ignore[attr-defined]
    assert (two.id, two.name, two.tags) == (2, None, None)  # type: ignore[attr-defined]


def test_what_does_not_parse_goes_to_a_column(lab: Lab) -> None:
    lab.q.push("in", [{"id": 1}, {"id": "x"}, b"\xff"])
    ((one, two, three),) = lab.collect(lab.read(payloadSchema="id INT", onCorrupt="column"))
    assert (one.payload.id, one.corrupt) == (1, None)  # type: ignore[attr-defined]
    assert (two.payload, two.corrupt) == (None, b'{"id":"x"}')  # type: ignore[attr-defined]
    assert three.corrupt == b"\xff"  # type: ignore[attr-defined]


def test_what_does_not_parse_becomes_a_dead_letter_when_its_batch_is_done(lab: Lab) -> None:
    lab.q.push("in", [{"id": 1}, {"id": "x"}, {"id": 3}])
    frame = lab.read(payloadSchema="id INT", onCorrupt="dead_letter").select("payload.id")
    assert [[row.id for row in rows] for rows in lab.collect(frame)] == [[1, 3]]  # type: ignore[attr-defined]
    (letter,) = lab.q.dead_letters("in").items
    assert letter.data == {"id": "x"}
    assert lab.counts().done == 2


def test_what_does_not_parse_fails_the_query_if_nothing_else_was_said(lab: Lab) -> None:
    lab.q.push("in", [{"id": "x"}])
    with pytest.raises(StreamingQueryException, match="onCorrupt"):
        lab.collect(lab.read(payloadSchema="id INT"))
    assert lab.counts().done == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"maxRows": 5}, "no option 'maxrows'; did you mean 'maxRowsPerTrigger'"),
        ({"payloadSchema": "id INTT"}, "the type of id is INTT; did you mean INT"),
        ({"table": "letters"}, "table must be one of messages, dead_letters, groups"),
    ],
)
def test_a_wrong_option_is_named_when_the_stream_is_loaded(
    lab: Lab, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        lab.read(**options)


def test_a_missing_option_is_named(lab: Lab) -> None:
    with pytest.raises(AnalysisException, match="needs the option 'queue'"):
        lab.spark.readStream.format("ackflow").option("url", lab.url).load()


def test_a_database_that_is_not_there_is_named_when_the_stream_is_loaded(
    lab: Lab, tmp_path: Path
) -> None:
    nowhere = tmp_path / "none" / "queue.db"
    frame = lab.spark.readStream.format("ackflow").option("url", str(nowhere)).option("queue", "in")
    with pytest.raises(AnalysisException, match=r"database not found: .*none"):
        frame.load()


def test_a_checkpoint_of_another_group_is_refused(lab: Lab) -> None:
    lab.q.push("in", [1])
    lab.collect(lab.read())
    lab.q.push("in", [2])
    with pytest.raises(StreamingQueryException, match="new checkpoint"):
        lab.collect(lab.read(group="other"))


def test_a_server_is_read_and_written_like_a_file(lab: Lab) -> None:
    lab.q.push("in", list(range(100)))
    server = Running(lab.q)
    file, lab.url = lab.url, server.url
    try:
        frame = lab.read(maxRowsPerTrigger=40, payload="string")
        lab.to_queue(frame.select("payload", F.lit("x").alias("partition")))
    finally:
        lab.url = file
        server.stop()
    assert sorted(lab.out()) == list(range(100))  # type: ignore[type-var]
    assert lab.counts().done == 100
