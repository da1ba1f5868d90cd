"""The sinks in real Spark: what is written, once, and what is refused."""

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import ackflow.spark

from .conftest import Lab
from .killing import kill_at


def save(frame: DataFrame, lab: Lab, **options: object) -> None:
    writer = frame.write.format("ackflow").mode("append").option("url", lab.url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


@pytest.mark.inner
def test_what_a_query_writes_is_there_once_and_its_input_is_done(lab: Lab) -> None:
    lab.q.push("in", list(range(1000)))
    frame = lab.read(maxRowsPerTrigger=300, payload="string").select("payload")
    lab.to_queue(frame)
    assert sorted(lab.out()) == list(range(1000))  # type: ignore[type-var]
    assert lab.counts().done == 1000


def test_rows_say_where_they_go(lab: Lab) -> None:
    rows = lab.spark.sql(
        "select to_json(struct(id)) as payload, concat('q', id % 2) as queue, "
        "concat('p', id % 3) as partition, cast(id % 2 as int) as priority, "
        "map('n', cast(id as string)) as headers, concat('t', id) as transaction_id, "
        "cast(null as double) as delay from range(12)"
    )
    save(rows, lab)
    for queue in ("q0", "q1"):
        messages = lab.q.pop(queue, group="g", batch=100)
        assert len(messages) == 6
        for message in messages:
            n = message.data["id"]
            place = (message.queue, message.partition, message.priority)
            assert place == (f"q{n % 2}", f"p{n % 3}", n % 2)
            assert (message.headers, message.transaction_id) == ({"n": str(n)}, f"t{n}")


def test_rows_of_one_key_go_to_one_partition_in_order(lab: Lab) -> None:
    rows = lab.spark.sql(
        "select cast(id as string) as payload, cast(id % 7 as string) as key from range(700)"
    ).coalesce(1)
    save(rows, lab, queue="out", keyPartitions=4)
    homes: dict[int, set[str]] = {}
    last: dict[int, int] = {}
    for message in lab.q.pop("out", group="g", batch=1000):
        key = message.data % 7
        homes.setdefault(key, set()).add(message.partition)
        assert last.get(key, -1) < message.data
        last[key] = message.data
    assert all(len(names) == 1 for names in homes.values())
    assert 1 < len(set.union(*homes.values())) <= 4


def test_options_hold_for_every_row(lab: Lab) -> None:
    rows = lab.spark.range(3).selectExpr("cast(id as string) as payload", "'x' as partition")
    save(rows, lab, queue="out", partition="y", priority=7, delay=3600)
    assert lab.q.pop("out", batch=9) == ()
    (message, *_) = lab.q.browse("out").items
    assert (message.partition, message.priority) == ("y", 7)


def test_bytes_stay_bytes_and_json_stays_json(lab: Lab) -> None:
    save(lab.spark.sql("select X'00FF' as payload"), lab, queue="out")
    save(lab.spark.sql("""select '{"a": 1}' as payload"""), lab, queue="out")
    save(lab.spark.sql("select 'no json' as payload"), lab, queue="out", payloadFormat="bytes")
    assert [m.data for m in lab.q.pop("out", batch=9)] == [b"\x00\xff", {"a": 1}, b"no json"]


def test_more_rows_than_a_segment_holds_are_split(lab: Lab) -> None:
    rows = lab.spark.range(0, 25_000, 1, 1).selectExpr("cast(id as string) as payload")
    save(rows, lab, queue="out")
    assert sorted(lab.out()) == list(range(25_000))  # type: ignore[type-var]


def test_insert_into_a_view_names_the_columns_that_it_gives(lab: Lab) -> None:
    lab.q.configure("out")
    lab.spark.sql(
        f"create or replace temporary view orders using ackflow options (url '{lab.url}', queue 'out')"
    )
    lab.spark.sql("insert into orders (payload, partition) values (X'01', 'eu')")
    lab.spark.sql("insert into orders (payload) values (X'02')")
    found = {m.partition: m.data for m in lab.q.pop("out", batch=9)}
    assert found == {"eu": b"\x01", "Default": b"\x02"}
    with pytest.raises(PySparkException, match="the queue sets the column 'id' itself"):
        lab.spark.sql("insert into orders (payload, id) values (X'03', 'x')")


def test_a_table_of_the_catalog_is_refused_with_a_sentence(lab: Lab) -> None:
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
        lab.spark.sql(f"create table orders using ackflow options (url '{lab.url}', queue 'out')")


@pytest.mark.parametrize(
    ("sql", "options", "sentence"),
    [
        ("select 1 as id, 'x' as payload", {"queue": "o"}, "unknown column 'id'"),
        ("select 'x' as queue", {}, "needs a column 'payload'"),
        ("select '1' as payload", {}, "needs the option 'queue' or a column 'queue'"),
        ("select 'x' as payload", {"queue": "o"}, "is not JSON"),
        ("select '1,2' as payload", {"queue": "o"}, "is not JSON"),
        ("select 1 as payload", {"queue": "o"}, "string or binary"),
        ("select cast(null as string) as payload", {"queue": "o"}, "null"),
        ("select '1' as payload", {"queue": "o", "batch": 1}, "producer and batch"),
        (
            "select '1' as payload",
            {"queue": "o", "prio": 1},
            "no option 'prio'; did you mean 'priority'",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(
    lab: Lab, sql: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        save(lab.spark.sql(sql), lab, **options)
    assert lab.q.queues() == []


def test_a_write_that_is_named_counts_once(lab: Lab) -> None:
    rows = lab.spark.range(5).selectExpr("cast(id as string) as payload")
    for _ in range(2):
        save(rows, lab, queue="out", producer="daily", batch=7)
    assert sorted(lab.out()) == [0, 1, 2, 3, 4]  # type: ignore[type-var]


def test_a_write_that_fails_leaves_nothing(lab: Lab) -> None:
    rows = lab.spark.range(0, 100, 1, 4).selectExpr(
        "case when id = 90 then 'broken' else cast(id as string) end as payload"
    )
    with pytest.raises(PySparkException):
        save(rows, lab, queue="out")
    assert lab.q.queues() == []


def test_a_task_that_is_tried_again_counts_once(lab: Lab) -> None:
    """The first attempt of every task fails after it has staged what it wrote."""
    lab.q.push("in", list(range(20_000)))
    kill_at(lab.spark, "fail after write")
    frame = lab.read(payload="string", maxRowsPerTrigger=12_000).select("payload")
    try:
        lab.to_queue(frame)
    finally:
        ackflow.spark.register(lab.spark)
    assert sorted(lab.out()) == list(range(20_000))  # type: ignore[type-var]
    assert lab.counts().done == 20_000


@pytest.mark.inner
def test_a_query_whose_messages_were_given_away_publishes_nothing(lab: Lab) -> None:
    lab.q.push("in", [1, 2, 3])
    url = lab.url

    def steal(payload: str) -> str:
        import ackflow

        with ackflow.connect(url, upkeep=False) as q:
            q.seek("in", "g", to="end")
        return payload

    stealing = F.udf(steal, "string", useArrow=False)
    frame = lab.read(payload="string").select(stealing("payload").alias("payload"))
    with pytest.raises(StreamingQueryException, match="no longer held"):
        lab.to_queue(frame)
    assert lab.out() == []


def test_one_query_writes_what_it_read_from_two_queues(lab: Lab) -> None:
    lab.q.push("in", [1, 2])
    lab.q.push("other", [3])
    both = lab.read(payload="string").union(lab.read("other", payload="string"))
    lab.to_queue(both.select("payload", F.col("queue").alias("partition")))
    assert sorted(lab.out()) == [1, 2, 3]  # type: ignore[type-var]
    assert (lab.counts().done, lab.counts("other").done) == (2, 1)
