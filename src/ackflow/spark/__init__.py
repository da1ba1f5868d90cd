"""The Spark connector: a source that acks a batch only after Spark has finished it, and a sink.

spark = ackflow.spark.session()
spark.readStream.format("ackflow").option("url", "orders.db").option("queue", "orders").load()
"""

try:
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as missing:
    from ..errors import InvalidArgument

    raise InvalidArgument(
        f"the Spark connector needs pyspark and pyarrow: pip install ackflow[spark] "
        f"({missing.name} is missing)"
    ) from None

from ..broker.readers.commit import BatchDone
from .datasource import AckflowDataSource
from .lag import LagListener, SourceLag, listener
from .spark_session import JavaMissing, register, session
from .verdicts import commit_batch, publisher, settle

__all__ = [
    "AckflowDataSource",
    "BatchDone",
    "JavaMissing",
    "LagListener",
    "SourceLag",
    "commit_batch",
    "listener",
    "publisher",
    "register",
    "session",
    "settle",
]
