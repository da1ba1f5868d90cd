"""The data source `ackflow`: creates readers and writers from options."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import InvalidArgument
from .columns import ddl
from .options import TABLES, SourceOptions, sink_options, source_options, table_options
from .sink import BatchSink, StreamSink
from .source import MessageStream
from .tables import SCHEMAS, TableReader


class AckflowDataSource(DataSource):
    """The format `ackflow` of `spark.read`, `readStream`, `write` and `writeStream`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "ackflow"

    def schema(self) -> str:
        # Spark calls this before it creates a reader, and shows errors raised here in full.
        if any(key.lower() == "table" for key in self.given):
            return SCHEMAS[table_options(self.given).table]
        return ddl(*_payload(source_options(self.given)))

    def streamReader(self, schema: StructType) -> MessageStream:
        return MessageStream(source_options(self.given), schema)

    def reader(self, schema: StructType) -> TableReader:
        if not any(key.lower() == "table" for key in self.given):
            raise InvalidArgument(
                f"spark.read needs the option 'table': one of {', '.join(TABLES)}; "
                "messages are consumed by spark.readStream"
            )
        return TableReader(table_options(self.given), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return StreamSink(sink_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        if overwrite:
            raise InvalidArgument("a queue cannot be overwritten; use mode('append')")
        return BatchSink(sink_options(self.given), schema)


def _payload(options: SourceOptions) -> tuple[str, bool]:
    """Return the type of the payload column, and whether there is a column for corrupt payloads."""
    kind = options.payload.upper()
    if options.payload_schema is not None:
        kind = f"STRUCT<{options.payload_schema}>"
    return kind, options.on_corrupt == "column"
