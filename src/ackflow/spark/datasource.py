"""The data source `ackflow`: creates readers and writers from options."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import InvalidArgument
from . import columns, sessions
from .options import (
    TABLES,
    SourceOptions,
    is_kafka,
    is_table,
    sink_options,
    source_options,
    table_options,
)
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
        if is_table(self.given):
            table = table_options(self.given)
            sessions.check(table)
            if table.schema == "kafka":
                return _kafka(table.include_headers)
            return SCHEMAS[table.table]
        options = source_options(self.given)
        sessions.check(options)
        return _kafka(options.include_headers) if options.schema == "kafka" else _native(options)

    def streamReader(self, schema: StructType) -> MessageStream:
        return MessageStream(source_options(self.given), schema)

    def reader(self, schema: StructType) -> TableReader:
        if not is_table(self.given) and not is_kafka(self.given):
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


def _native(options: SourceOptions) -> str:
    kinds = dict(columns.NATIVE)
    kinds[columns.PAYLOAD] = options.payload.upper()
    if options.payload_schema is not None:
        kinds[columns.PAYLOAD] = f"STRUCT<{options.payload_schema}>"
    if options.on_corrupt == "column":
        kinds[columns.CORRUPT] = "BINARY"
    return columns.schema_of(kinds)


def _kafka(headers: bool) -> str:
    return columns.schema_of(columns.KAFKA_WITH_HEADERS if headers else columns.KAFKA)
