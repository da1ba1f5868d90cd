"""What a query reports of the messages that are left: to Spark, and to a listener."""

import json
import threading

import ackflow.spark
from ackflow.spark import SourceLag

from .conftest import Lab


def test_a_listener_is_told_the_lag_of_each_source_under_kafkas_names(lab: Lab) -> None:
    lab.q.push("in", list(range(6)), partition="a")
    lab.q.push("in", list(range(4)), partition="b")
    seen: list[tuple[str, int, SourceLag]] = []
    done = threading.Event()

    def report(query: str, batch: int, lag: SourceLag) -> None:
        seen.append((query, batch, lag))
        if batch == 2:
            done.set()

    listener = ackflow.spark.listener(lab.spark, report)
    writer = lab.read(maxRowsPerTrigger=4).writeStream.format("noop").queryName("orders")
    try:
        query = writer.option("checkpointLocation", lab.checkpoint("q")).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        assert done.wait(30)
    finally:
        lab.spark.streams.removeListener(listener)
    lags = [lag for name, batch, lag in seen if name == "orders" and batch < 3]
    assert [(lag.queue, lag.group, lag.ready, lag.leased) for lag in lags] == [
        ("in", "g", 6, 4), ("in", "g", 2, 4), ("in", "g", 0, 2),
    ]  # fmt: skip
    assert [lag.done for lag in lags] == [0, 4, 8]
    assert lags[0].metrics == {
        "minOffsetsBehindLatest": "2", "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "3.0",
    }  # fmt: skip
    latest = [json.loads(p["sources"][0]["latestOffset"]) for p in running.recentProgress]
    assert [offset["ready"] for offset in latest[:3]] == [6, 2, 0]
