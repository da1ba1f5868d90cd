"""Ack, reject or hold each message of a Spark batch.

    python examples/spark_verdicts.py

In mode `manual` the query decides about every message, in one transaction with its output. A message
without a verdict counts as failed and is redelivered, up to the retry limit of its group.
"""

import sys
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import ackflow
import ackflow.spark


def main(folder: str) -> None:
    url = f"{folder}/payments.db"
    with ackflow.connect(url) as q:
        q.push("payments", [{"id": n, "cents": n * 10 - 20} for n in range(10)])

    spark = ackflow.spark.session()
    payments = (
        spark.readStream.format("ackflow")
        .option("url", url)
        .option("queue", "payments")
        .option("group", "ledger")
        .option("mode", "manual")
        .option("payloadSchema", "id INT, cents INT")
        .load()
    )

    def book(batch: DataFrame, batch_id: int) -> None:
        with_verdicts = batch.withColumn(
            "verdict",
            F.when(F.col("payload.cents") < 0, "reject")  # to the dead letters, with the reason
            .when(F.col("payload.cents") == 0, "hold")  # stays leased until it is settled
            .otherwise("ack"),
        ).withColumn("reason", F.lit("a payment must not be negative"))
        booked = with_verdicts.where("verdict = 'ack'").select(
            F.to_json("payload").alias("payload")
        )
        done = ackflow.spark.commit_batch(
            batch_id,
            url,
            output=booked,
            queue="bookings",
            verdicts=with_verdicts.select("id", "lease", "verdict", "reason"),
        )
        print("batch", batch_id, "published", done.published)

    query = (
        payments.writeStream.foreachBatch(book)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    with ackflow.connect(url) as q:
        counts = q.group_stats("payments", "ledger").counts
        print(counts.done, "booked,", counts.dead, "rejected,", counts.leased, "held")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
