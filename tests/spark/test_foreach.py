"""`foreachBatch`: verdicts by DataFrame, alone or in one commit with an output."""

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import ackflow.spark
from ackflow.errors import InvalidArgument

from .conftest import Lab

VERDICT = (
    "case cast(cast(payload as string) as int) % 5 when 1 then 'reject' when 2 then 'requeue' "
    "when 3 then 'nack' when 4 then 'HOLD' else 'ack' end"
)


def judged(frame: DataFrame) -> DataFrame:
    return frame.select(
        "id", "lease", F.expr(VERDICT).alias("verdict"), F.lit("why").alias("reason"),
        F.lit(3600.0).alias("delay"),
    )  # fmt: skip


def test_each_message_is_settled_its_own_way(lab: Lab) -> None:
    lab.q.push("in", list(range(1000)), partition="a")
    lab.q.push("in", list(range(1000)), partition="b")
    refused: list[int] = []
    lab.each(
        lab.read(mode="manual"),
        lambda df, _: refused.append(ackflow.spark.settle(judged(df), lab.url)),
    )
    counts = lab.counts()
    assert refused == [0]
    assert (counts.done, counts.dead) == (800, 400)
    assert (counts.waiting, counts.leased) == (800, 400)
    assert {letter.reason for letter in lab.q.dead_letters("in", limit=1000).items} == {"why"}


@pytest.mark.inner
def test_output_and_verdicts_are_one_commit(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))

    def handle(frame: DataFrame, batch: int) -> None:
        text = frame.selectExpr("id", "lease", "cast(payload as string) as payload")
        good = text.where("cast(payload as int) % 2 = 0")
        bad = text.where("cast(payload as int) % 2 = 1")
        verdicts = good.selectExpr("id", "lease", "'ack' as verdict").union(
            bad.selectExpr("id", "lease", "'reject' as verdict")
        )
        done = ackflow.spark.commit_batch(
            batch, lab.url, output=good.select("payload"), verdicts=verdicts, queue="out"
        )
        assert (done.published, done.repeated) == (5, False)

    lab.each(lab.read(mode="manual"), handle)
    assert sorted(lab.out()) == [0, 2, 4, 6, 8]  # type: ignore[type-var]
    assert (lab.counts().done, lab.counts().dead) == (5, 5)


def test_a_second_commit_of_a_batch_is_refused_as_its_output_would_be_lost(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))

    def handle(frame: DataFrame, batch: int) -> None:
        out = frame.selectExpr("cast(payload as string) as payload")
        ackflow.spark.commit_batch(batch, lab.url, output=out, queue="out")
        with pytest.raises(InvalidArgument, match="called before for batch 0"):
            ackflow.spark.commit_batch(batch, lab.url, output=out, queue="audit")

    lab.each(lab.read(), handle)
    assert sorted(lab.out()) == list(range(10))  # type: ignore[type-var]


def test_several_outputs_are_one_commit(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))

    def handle(frame: DataFrame, batch: int) -> None:
        text = frame.selectExpr("cast(payload as string) as payload")
        outputs = {"out": text, "odd": text.where("cast(payload as int) % 2 = 1")}
        done = ackflow.spark.commit_batch(batch, lab.url, output=outputs)
        assert (done.published, done.settled) == (15, 10)

    lab.each(lab.read(), handle)
    assert sorted(lab.out()) == list(range(10))  # type: ignore[type-var]
    assert sorted(lab.out("odd")) == [1, 3, 5, 7, 9]  # type: ignore[type-var]


def test_output_mode_update_is_published_by_foreach_batch(lab: Lab) -> None:
    """Spark's sinks written in Python have no mode update."""
    lab.q.push("in", [1, 2, 3], partition="a")
    lab.q.push("in", [4], partition="b")
    counts = lab.read().groupBy("partition").count()
    frame = counts.select(F.to_json(F.struct("partition", "count")).alias("payload"))
    writer = frame.writeStream.outputMode("update").foreachBatch(
        ackflow.spark.publisher(lab.url, queue="out")
    )
    lab.finish(writer.option("checkpointLocation", lab.checkpoint("query")))
    found = {row["partition"]: row["count"] for row in lab.out()}  # type: ignore[call-overload, index]
    assert found == {"a": 3, "b": 1}
    assert lab.counts().done == 4


def test_in_mode_commit_what_has_no_verdict_is_acked_with_the_output(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))

    def handle(frame: DataFrame, batch: int) -> None:
        bad = frame.where("sequence = 3").selectExpr("id", "lease", "'reject' as verdict")
        out = frame.where("sequence <> 3").selectExpr("cast(payload as string) as payload")
        ackflow.spark.commit_batch(batch, lab.url, output=out, verdicts=bad, queue="out")
        assert (lab.counts().done, lab.counts().dead) == (9, 1)

    lab.each(lab.read(), handle)
    assert len(lab.out()) == 9


def test_a_batch_that_fails_is_done_again_and_commits_once(lab: Lab) -> None:
    lab.q.push("in", list(range(10)))
    failing = [True]

    def handle(frame: DataFrame, batch: int) -> None:
        out = frame.selectExpr("cast(payload as string) as payload")
        ackflow.spark.commit_batch(batch, lab.url, output=out, queue="out")
        if failing.pop():
            raise RuntimeError("after the commit")

    with pytest.raises(StreamingQueryException, match="after the commit"):
        lab.each(lab.read(), handle)
    failing.append(False)
    lab.each(lab.read(), handle)
    assert sorted(lab.out()) == list(range(10))  # type: ignore[type-var]
    assert lab.counts().done == 10


def test_what_is_held_is_given_to_the_next_run(lab: Lab) -> None:
    lab.q.push("in", [1, 2])
    seen: list[list[tuple[int, bool]]] = []

    def handle(frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        seen.append([(int(row.payload), row.redelivered) for row in rows])
        verdict = F.when(F.col("sequence") == 0, "hold").otherwise("ack")
        held = frame.select("id", "lease", verdict.alias("verdict"))
        assert ackflow.spark.settle(held, lab.url) == 0

    for _ in range(2):
        lab.each(lab.read(mode="manual"), handle)
        assert lab.counts().leased == 1
    assert seen == [[(1, False), (2, False)], [(1, True)]]


def test_what_is_forgotten_comes_again_and_counts_as_failed(lab: Lab) -> None:
    lab.q.push("in", [1])
    failures: list[int] = []
    for _ in range(3):
        lab.each(lab.read(mode="manual"), lambda df, _: failures.append(df.count()))
    assert failures == [1, 1, 1]
    (letter,) = lab.q.dead_letters("in").items
    assert (letter.kind, letter.failures) == ("failed", 3)


def test_wrong_verdicts_are_named(lab: Lab) -> None:
    frame = lab.spark.sql("select 'x' as id, 'y' as lease")
    with pytest.raises(InvalidArgument, match="need the column 'verdict'"):
        ackflow.spark.settle(frame, lab.url)
    id = ackflow.ids.message_id(1, 1, 1)
    frame = lab.spark.sql(f"select '{id}' as id, 'AAAAAAAAAAA' as lease, 'maybe' as verdict")
    with pytest.raises(PySparkException, match=r"verdict must be one of ack, .*hold, got 'maybe'"):
        ackflow.spark.settle(frame, lab.url)


def test_commit_batch_belongs_into_foreach_batch(lab: Lab) -> None:
    with pytest.raises(InvalidArgument, match="foreachBatch"):
        ackflow.spark.commit_batch(0, lab.url)
