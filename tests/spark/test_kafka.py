"""Kafka's columns and option names: a job for Kafka runs with the format and the url changed."""

import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import ackflow.spark
from ackflow import Item, ids

from .conftest import Lab

KAFKA = {"schema": "kafka", "includeHeaders": "true"}


def test_a_job_of_kafka_reads_and_writes_kafkas_columns(lab: Lab) -> None:
    headers = F.array(F.struct(F.lit("h").alias("key"), F.lit(b"v").alias("value")))
    rows = lab.spark.range(4).select(
        F.expr("if(id = 0, null, concat('k', id % 2))").alias("key"),
        F.expr("concat('value ', id)").alias("value"),
        headers.alias("headers"),
        F.lit("in").alias("topic"),
    )
    rows.write.format("ackflow").option("url", lab.url).options(schema="kafka").mode(
        "append"
    ).save()
    source = lab.spark.readStream.format("ackflow").options(**KAFKA).option("url", lab.url)
    source = source.option("subscribe", "in").option("kafka.group.id", "g")
    frame = source.option("maxOffsetsPerTrigger", 3).load()
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    batches = lab.collect(frame.selectExpr("*", "cast(value as string) as text"))
    assert [len(rows) for rows in batches] == [3, 1]
    found = {row.text: row for rows in batches for row in rows}  # type: ignore[attr-defined]
    for n in range(4):
        row = found[f"value {n}"]
        assert row.key == (f"k{n % 2}".encode() if n else None)
        assert [(pair.key, pair.value) for pair in row.headers] == [("h", b"v")]
        message = lab.q.message("in", message_id(lab, row.partition, row.offset))
        assert (row.topic, message.raw) == ("in", f"value {n}".encode())
        assert row.timestamp == message.created_at.astimezone().replace(tzinfo=None)
        assert row.timestampType == 0
    assert found["value 1"].partition == found["value 3"].partition
    assert lab.counts().done == 4


def message_id(lab: Lab, partition: int, offset: int) -> str:
    """Return the id of the message at an offset of a partition, as Kafka numbers them."""
    (known, *_) = lab.q.browse("in", limit=1).items
    return ids.message_id(ids.parse_message_id(known.id).store, partition, offset)


def test_a_queue_is_read_as_a_table_in_kafkas_columns(lab: Lab) -> None:
    lab.q.push("in", [Item(data={"n": 1}, headers={"key": "k", "h": "v"}), Item(data=b"2")])
    reader = lab.spark.read.format("ackflow").options(**KAFKA).option("url", lab.url)
    frame = reader.option("subscribe", "in").option("endingOffsets", "latest").load()
    one, two = frame.orderBy("offset").collect()
    assert (one.key, one.value, one.topic, one.offset) == (b"k", b'{"n":1}', "in", 0)
    assert [(pair.key, pair.value) for pair in one.headers] == [("h", b"v")]
    assert (two.key, two.value, two.headers, two.partition) == (None, b"2", None, one.partition)


@pytest.mark.parametrize(("offsets", "seen"), [("earliest", [1, 2]), ("latest", [2])])
def test_a_new_group_begins_where_startingoffsets_says(
    lab: Lab, offsets: str, seen: list[int]
) -> None:
    lab.q.push("in", [1])
    read = lab.read(schema="kafka", startingOffsets=offsets).select("value")
    first = lab.collect(read)
    lab.q.push("in", [2])
    batches = first + lab.collect(read)
    assert [int(row.value) for rows in batches for row in rows] == seen  # type: ignore[attr-defined]


def test_what_is_no_longer_stored_fails_a_query_or_is_left_out(lab: Lab) -> None:
    """A batch is read again after one of its messages was settled and removed."""
    lab.q.push("in", [1])

    def settle_and_fail(frame: DataFrame, _: int) -> None:
        acked = frame.selectExpr("id", "lease", "'ack' as verdict")
        ackflow.spark.settle(acked, lab.url)
        raise RuntimeError("settled")

    with pytest.raises(StreamingQueryException, match="settled"):
        lab.each(lab.read(mode="manual"), settle_and_fail)
    lab.q.configure("in", retention_seconds=0.01)
    time.sleep(0.1)
    lab.q.upkeep()
    with pytest.raises(StreamingQueryException, match="no longer stored"):
        lab.collect(lab.read(mode="manual"))
    assert lab.collect(lab.read(mode="manual", failOnDataLoss="false")) == [[]]
