"""Write a table to a queue with Spark, and query a queue with SQL.

python examples/spark_tables.py
"""

import sys
import tempfile

import ackflow
import ackflow.spark


def main(folder: str) -> None:
    url = f"{folder}/jobs.db"
    spark = ackflow.spark.session()
    jobs = spark.range(1000).selectExpr(
        "to_json(struct(id)) AS payload",
        "concat('tenant-', id % 4) AS partition",
        "cast(id % 2 AS int) AS priority",
    )
    jobs.write.format("ackflow").mode("append").option("url", url).option("queue", "jobs").save()

    with ackflow.connect(url) as q:
        batch = q.pop("jobs", group="workers", batch=100)
        q.ack(batch[:90])
        q.reject(batch[90:], "too old")

    for table in ("messages", "dead_letters", "groups"):
        reader = spark.read.format("ackflow").option("url", url).option("queue", "jobs")
        frame = reader.option("table", table).option("group", "workers").load()
        frame.createOrReplaceTempView(table)
    spark.sql("SELECT partition, state, count(*) FROM messages GROUP BY ALL ORDER BY ALL").show()
    spark.sql("SELECT reason, count(*) FROM dead_letters GROUP BY reason").show()
    spark.sql("SELECT name, ready, leased, done, dead FROM groups").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
