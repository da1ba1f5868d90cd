"""Transform one queue into another with Spark, exactly once.

    python examples/spark_queue_to_queue.py

In mode `commit`, the default, the output of a batch and the acks of its input are one transaction.
You can kill this program at any moment and start it again: the output is the same.
"""

import sys
import tempfile

from pyspark.sql import functions as F

import ackflow
import ackflow.spark


def main(folder: str) -> None:
    url = f"{folder}/shop.db"
    with ackflow.connect(url) as q:
        q.push("orders", [{"id": n, "customer": f"c{n % 3}", "cents": 100 * n} for n in range(9)])

    spark = ackflow.spark.session()
    orders = (
        spark.readStream.format("ackflow")
        .option("url", url)
        .option("queue", "orders")
        .option("group", "invoicing")
        .option("payloadSchema", "id INT, customer STRING, cents INT")
        .option("onCorrupt", "dead_letter")
        .load()
    )
    invoices = orders.where("payload.cents > 0").select(
        F.to_json(F.struct("payload.id", (F.col("payload.cents") / 100).alias("euros"))).alias(
            "payload"
        ),
        F.col("payload.customer").alias("key"),
    )
    query = (
        invoices.writeStream.format("ackflow")
        .option("url", url)
        .option("queue", "invoices")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # omit this to keep the query running
        .start()
    )
    query.awaitTermination()

    with ackflow.connect(url) as q:
        print(q.queue_stats("invoices").messages, "invoices")
        print(q.group_stats("orders", "invoicing").counts.done, "orders done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
