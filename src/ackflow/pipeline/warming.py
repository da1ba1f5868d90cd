"""Warming Spark up for a router: a few made-up batches through all that a router does.

They go through a queue of their own, in a folder that is gone afterwards, and become nothing.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from .. import connect
from ..spark import sessions
from .declaration import Kind, Pipeline, Table
from .messages import Batch, EndOfTable, raw
from .router import GROUP, Router

CLIENT = "warming-up"
CELLS: dict[Kind, str] = {"text": "1", "time": "2024-01-01 12:00:00", "decimal": "100"}


def warm_up(
    spark: SparkSession, pipeline: Pipeline, shards: int, enough: Callable[[float], bool]
) -> None:
    """Route a made-up batch; `enough` waits so many seconds, and says whether to leave it there."""
    with TemporaryDirectory(prefix="ackflow-", ignore_cleanup_errors=True) as folder:
        url = str(Path(folder, "queue.db"))
        with connect(url, consumer=CLIENT) as q:
            router = Router(q, url, pipeline, shards, Path(folder, "checkpoint"))
            for table in pipeline.tables:
                for message in (_batch(table), EndOfTable(CLIENT, table.name, 0, 1, 1)):
                    q.push(pipeline.inbox, raw(message), partition=CLIENT)
            query = router.start(spark)
            # What a route cannot work out of such rows stops the query, which is warm then, too.
            while query.isActive and q.group_stats(pipeline.inbox, GROUP).counts.lag:
                if enough(0.2):
                    break
            query.stop()
        sessions.close()


def _batch(table: Table) -> Batch:
    cells = [CELLS[table.kind(name)] for name in table.keep]
    return Batch(CLIENT, table.name, 0, 1, [cells, cells])
