"""A queue as tables."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ackflow import Item

from .conftest import Lab


def table(lab: Lab, name: str, **options: str) -> DataFrame:
    reader = lab.spark.read.format("ackflow").option("url", lab.url).option("queue", "in")
    return reader.option("table", name).options(**options).load()


def test_messages_are_a_table_with_their_state(lab: Lab) -> None:
    for n in range(20):
        lab.q.push("in", list(range(500)), partition=f"p{n}")
    batch = lab.q.pop("in", group="g", batch=400)
    lab.q.ack(batch[:300])
    found = table(lab, "messages", group="g", parallelism="4")
    assert found.rdd.getNumPartitions() == 4
    states = {row.state: row["count"] for row in found.groupBy("state").count().collect()}
    assert states == {"settled": 300, "leased": 100, "ready": 9600}
    assert found.select("id").distinct().count() == 10_000


def test_dead_letters_are_a_table(lab: Lab) -> None:
    lab.q.push("in", [Item(data={"a": 1}, headers={"h": "v"})])
    lab.q.pop("in", group="g")[0].reject("ugly")
    (row,) = table(lab, "dead_letters").collect()
    assert (row["group"], row.kind, row.reason) == ("g", "rejected", "ugly")
    assert (row.payload, row.headers) == (b'{"a":1}', {"h": "v"})


def test_groups_are_a_table(lab: Lab) -> None:
    lab.q.push("in", [1, 2, 3])
    lab.q.ack(lab.q.pop("in", group="g", batch=2))
    lab.q.group("in", "h")
    rows = {row.name: (row.done, row.ready) for row in table(lab, "groups").collect()}
    assert rows == {"g": (2, 1), "h": (0, 3)}


def test_a_batch_read_needs_a_table(lab: Lab) -> None:
    reader = lab.spark.read.format("ackflow").option("url", lab.url).option("queue", "in")
    with pytest.raises(PySparkException, match="needs the option 'table'"):
        reader.load().collect()


def test_a_queue_that_is_not_there_is_named(lab: Lab) -> None:
    with pytest.raises(PySparkException, match="there is no queue 'in'"):
        table(lab, "messages").collect()
