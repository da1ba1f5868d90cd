"""A Spark application to be killed: queue to queue on one database, each message marked."""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

from tests.spark.conftest import fast_session
from tests.spark.killing import kill_at


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("checkpoint")
    parser.add_argument("--point", default="")
    parser.add_argument("--master", default="local[2,3]")
    parser.add_argument("--lease", type=float, default=60)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--stay", action="store_true", help="go on when there is nothing more")
    given = parser.parse_args()
    conf = {} if given.master.startswith("local") else CLUSTER
    spark = fast_session(given.master, **conf)
    if given.point:
        kill_at(spark, given.point)
    writer = queue_to_queue(spark, given.url, given.checkpoint, given.rows, given.lease)
    query = (writer if given.stay else writer.trigger(availableNow=True)).start()
    query.awaitTermination()


def queue_to_queue(
    spark: SparkSession, url: str, checkpoint: str, rows: int, lease: float
) -> DataStreamWriter:
    """Return the query of the application, not started."""
    source = spark.readStream.format("ackflow").option("url", url).option("queue", "in")
    source = source.option("group", "g").option("payload", "string")
    source = source.option("maxRowsPerTrigger", rows).option("leaseSeconds", lease)
    frame = source.load().select(
        F.to_json(F.struct(F.col("payload").cast("int").alias("n"))).alias("payload"),
        F.col("partition"),
    )
    writer = frame.writeStream.format("ackflow").option("url", url).option("queue", "out")
    return writer.option("checkpointLocation", checkpoint)


CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


if __name__ == "__main__":
    main()
