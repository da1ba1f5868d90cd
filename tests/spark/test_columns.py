"""Messages to Arrow and back without Spark: every column, every shape of run."""

import datetime
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from ackflow import Item, Session, ranges
from ackflow.broker.core.leases import read
from ackflow.broker.readers.verbs import PlannedPart
from ackflow.errors import InvalidArgument, NotFound
from ackflow.ids import LaneId, message_id, parse_token
from ackflow.spark import sessions
from ackflow.spark.columns import (
    NATIVE,
    PAYLOAD,
    RowBuilder,
    _id_texts,
    _sequence,
    arrow_type,
)
from ackflow.spark.encode import Chunker, check_columns
from ackflow.spark.options import SinkOptions, sink_options, source_options, table_options
from ackflow.spark.parse import Parser, invalid_utf8_rows
from ackflow.spark.source import distribute


def rows_of(q: Session, batch: int = 1000) -> tuple[RowBuilder, list[object]]:
    messages = q.pop("orders", group="g", batch=batch)
    assert messages.token is not None
    handout = q.broker.do(read, False, parse_token(messages.token))
    rows = RowBuilder()
    for run in handout.runs:
        rows.add(handout, run)
    return rows, list(messages)


def columns_of(rows: RowBuilder) -> dict[str, pa.Array]:
    return {
        name: rows.column(name, arrow_type(kind))
        for name, kind in NATIVE.items()
        if name != PAYLOAD
    }


def test_columns_say_what_the_messages_say(q: Session) -> None:
    for n in range(5):
        q.push("orders", [{"n": n}, b"\x00\xff"], partition=f"p{n % 2}", priority=n % 3)
    q.push("orders", [Item(data=1, headers={"a": "b"}, transaction_id="t"), Item(data=2)])
    q.pop("orders", group="g", batch=3)[1].nack("x")
    rows, messages = rows_of(q)
    columns = {**columns_of(rows), "payload": rows.payloads()}
    for name, attribute in {
        "id": "id", "queue": "queue", "partition": "partition", "priority": "priority",
        "sequence": "sequence", "payload": "raw", "transaction_id": "transaction_id",
        "created_at": "created_at", "deliveries": "deliveries", "redelivered": "redelivered",
        "lease": "token",
    }.items():  # fmt: skip
        assert columns[name].to_pylist() == [getattr(m, attribute) for m in messages], name
    headers = [dict(items) for items in columns["headers"].to_pylist()]
    assert headers == [m.headers for m in messages]  # type: ignore[attr-defined]
    for column in columns.values():
        column.validate(full=True)


def test_a_part_of_a_segment_has_only_its_own_rows(q: Session) -> None:
    q.push(
        "orders", [Item(data=n, headers={"n": str(n)}, transaction_id=f"t{n}") for n in range(9)]
    )
    q.pop("orders", group="g", batch=3)
    rows, _ = rows_of(q, batch=4)
    assert rows.payloads().to_pylist() == [b"3", b"4", b"5", b"6"]
    columns = columns_of(rows)
    assert columns["transaction_id"].to_pylist() == ["t3", "t4", "t5", "t6"]
    assert [dict(h)["n"] for h in columns["headers"].to_pylist()] == ["3", "4", "5", "6"]
    assert [rows.locate(row)[1] for row in range(4)] == [3, 4, 5, 6]


@pytest.mark.parametrize("lo", [0, 65_530, 65_536, (1 << 32) - 5, (1 << 47) + 1])
def test_ids_are_right_across_blocks(lo: int) -> None:
    text = b"".join(_id_texts(12345, 678, lo, lo + 20)).decode()
    found = [text[at : at + 36] for at in range(0, len(text), 36)]
    assert found == [message_id(12345, 678, n) for n in range(lo, lo + 20)]
    assert _sequence(lo, lo + 70_000).to_pylist() == list(range(lo, lo + 70_000))


def test_the_payloads_of_a_large_body_are_not_copied(q: Session) -> None:
    q.push("orders", [b"x" * 300_000, b"y" * 100_000])
    q.push("orders", [b"z"])
    messages = q.pop("orders", group="g", batch=3)
    assert messages.token is not None
    handout = q.broker.do(read, False, parse_token(messages.token))
    large, small = handout.runs
    rows = RowBuilder()
    rows.add(handout, large)
    assert not rows.fits(small)
    payloads = rows.payloads()
    assert payloads.to_pylist() == [b"x" * 300_000, b"y" * 100_000]
    assert payloads.buffers()[2].address == pa.py_buffer(large.body.data).address


# parsing


KIND = pa.struct(
    [
        ("i", pa.int8()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("n", pa.decimal128(10, 2)),
        ("l", pa.list_(pa.struct([("x", pa.int64())]))), ("m", pa.map_(pa.string(), pa.int32())),
        ("o", pa.struct([("class", pa.string())])),
    ]
)  # fmt: skip


def test_every_type_is_parsed() -> None:
    raw = (
        b'{"i": 1, "f": 2, "s": "x", "b": true, "t": "2026-01-02T03:04:05Z", "d": "2026-01-02", '
        b'"n": "1.50", "l": [{"x": 1}, null], "m": {"k": 3}, "o": {"class": "c"}, "else": 0}'
    )
    found, bad = Parser(KIND).parse(pa.array([raw, b"{}"], pa.binary()))
    assert bad == []
    one, two = found.to_pylist()
    assert one["t"] == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert (one["l"], one["m"], one["o"]) == ([{"x": 1}, None], [("k", 3)], {"class": "c"})
    assert set(two.values()) == {None}


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"1", b"{}{}", b'{"i": 500}', b'{"i": "x"}', b"\xff", b'{"i": 1.5}', b"["]
)
def test_what_does_not_fit_is_told_by_its_row(raw: bytes) -> None:
    found, bad = Parser(KIND).parse(pa.array([b"{}", raw, b'{"i": 7}'], pa.binary()))
    assert bad == [1]
    assert [None if v is None else v["i"] for v in found.to_pylist()] == [None, None, 7]


def test_what_is_no_text_is_told_by_its_row() -> None:
    assert invalid_utf8_rows(pa.array([b"a", b"\xff", "ö".encode(), b"\x80"], pa.binary())) == [
        1,
        3,
    ]
    assert invalid_utf8_rows(pa.array([b"a"], pa.binary())) == []


def test_a_type_that_json_has_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="from_json"):
        Parser(pa.struct([("x", pa.duration("us"))]))


# writing


def chunks(frame: dict[str, pa.Array], **options: object) -> list[tuple[object, ...]]:
    batch = pa.RecordBatch.from_pydict(frame)
    made = Chunker(SinkOptions("x", **{"queue": "q", **options})).chunks(batch)  # type: ignore[arg-type]
    return [(c.partition, c.priority, c.delay, c.ends.tolist(), c.data) for c in made]


def test_rows_of_one_lane_become_one_chunk() -> None:
    payload = pa.array(["1", "22", "333"])
    assert chunks({"payload": payload}) == [("Default", 0, None, [1, 3, 6], b"122333")]
    assert chunks({"payload": payload.slice(1)}) == [("Default", 0, None, [2, 5], b"22333")]


def test_rows_are_sorted_into_lanes_and_keep_their_order() -> None:
    found = chunks(
        {
            "payload": pa.array([str(n) for n in range(6)]),
            "partition": pa.array(["a", "b", "a", None, "b", "a"]),
            "priority": pa.array([0, 0, 1, 0, None, 0], pa.int32()),
        }
    )
    lanes = {(partition, priority): data for partition, priority, _, _, data in found}
    assert lanes == {
        ("a", 0): b"05", ("a", 1): b"2", ("b", 0): b"14", ("Default", 0): b"3",
    }  # fmt: skip


def test_a_delay_makes_a_chunk_of_its_own() -> None:
    delay = pa.array([None, 5.0, None, 5.0])
    found = chunks({"payload": pa.array(["0", "1", "2", "3"]), "delay": delay})
    assert {(late, data) for _, _, late, _, data in found} == {(None, b"02"), (5.0, b"13")}


def test_large_payloads_are_split_to_fit_a_segment() -> None:
    payload = pa.array([b"x" * 1_500_000] * 6, pa.binary())
    assert [len(ends) for *_, ends, _ in chunks({"payload": payload})] == [2, 2, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["", "1,2", "{", "'x'", "nul", "[1]]"])
def test_what_is_not_json_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="not JSON"):
        chunks({"payload": pa.array(["1", bad, '{"a": [1, 2]}'])})


def test_json_is_kept_byte_for_byte() -> None:
    raw = ' {"b" :1,\n "a":  "ö"} '
    assert chunks({"payload": pa.array([raw])})[0][-1] == raw.encode()


def test_columns_are_checked_by_name() -> None:
    options = sink_options({"url": "x.db", "queue": "q"})
    with pytest.raises(InvalidArgument, match="key and partition cannot be used together"):
        check_columns(["payload", "key", "partition"], options)


def test_kafkas_columns_are_written() -> None:
    frame = {
        "value": pa.array(["a", "b", "c"]),
        "key": pa.array([b"k", None, b"k"], pa.binary()),
        "partition": pa.array([None, None, 3], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": b"v"}], None, []],
                            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(frame)
    made = {c.partition: c for c in Chunker(SinkOptions("x", "q", "kafka")).chunks(batch)}
    assert {name: chunk.data for name, chunk in made.items()} == {
        "Default": b"b", "3": b"c", made_for(b"k"): b"a",
    }  # fmt: skip
    rest = made[made_for(b"k")].rest
    assert rest is not None
    assert rest.headers == {0: {"h": "v", "key": "k"}}
    assert rest.is_binary(0)


def made_for(key: bytes) -> str:
    return f"key-{zlib.crc32(key) % 16}"


def test_a_key_that_is_no_text_is_refused() -> None:
    frame = {"value": pa.array(["a"]), "key": pa.array([b"\xff"], pa.binary())}
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        list(Chunker(SinkOptions("x", "q", "kafka")).chunks(pa.RecordBatch.from_pydict(frame)))


def test_names_of_options_are_read_in_any_case_and_with_underscores() -> None:
    given = {"URL": "http://x", "queue": "q", "max_rows_per_trigger": "7", "LeaseSeconds": "5"}
    found = source_options(given)
    assert (found.url, found.max_rows, found.lease_seconds) == ("http://x", 7, 5.0)


@pytest.mark.parametrize("url", ["", " ", ":memory:"])
def test_a_database_that_processes_cannot_share_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url must be a database file"):
        source_options({"url": url, "queue": "orders", "group": "g"})


def test_what_reads_does_not_make_a_database(tmp_path: Path) -> None:
    options = source_options({"url": str(tmp_path / "typo.db"), "queue": "orders", "group": "g"})
    with pytest.raises(NotFound, match="database not found"):
        sessions.existing_session(options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"maxRows": "5"},
            "no option 'maxRows'; did you mean 'maxRowsPerTrigger'\\? It has failOnDataLoss, ",
        ),
        ({"prio": "5"}, "no option 'prio'; it has fail"),
        ({"path": "x.db"}, "has no path; give the database or server as the option url"),
        ({"schema": "kafka", "assign": "{}"}, "'assign': a source reads one queue"),
        ({"schema": "kafka", "kafka.bootstrap.servers": "x"}, "give the database or the server"),
        ({"schema": "kafka", "kafka.ssl.key": "x"}, "no Kafka client to configure"),
        ({"schema": "kafka", "subscribe": "in"}, "queue and subscribe set the same"),
        ({"schema": "kafka", "startingOffsets": '{"in":{"0":1}}'}, "must be earliest or latest"),
        ({"schema": "kafka", "maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"schema": "kafka", "failOnDataLoss": "no"}, "failOnDataLoss must be one of true"),
        ({"mode": "auto"}, "mode must be one of commit, manual, got 'auto'"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger must be an integer, got 'many'"),
        ({"leaseSeconds": "0"}, "leaseSeconds must be a timedelta or a number of seconds"),
        ({"onCorrupt": "column"}, "onCorrupt needs"),
        ({"schema": "avro"}, "schema must be one of ackflow, kafka, got 'avro'"),
        ({"payloadSchema": "id INTT"}, "the type of id is INTT; did you mean INT\\?"),
        ({"payloadSchema": "id INT,, x INT"}, "expected the name of a field, got ,"),
        ({"payloadSchema": "i INT, m MAP<INT, INT>"}, "expected STRING, got INT"),
    ],
)
def test_a_wrong_option_of_a_source_is_answered_by_a_sentence(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        source_options({"url": "x.db", "queue": "in"} | given)


def test_schemas_of_payloads_are_taken_as_spark_writes_them() -> None:
    schema = "id: DECIMAL(10, 2) NOT NULL COMMENT 'a, b', m MAP<STRING, ARRAY<STRUCT<`a b`: INT>>>"
    found = source_options({"url": "x.db", "queue": "in", "payloadSchema": schema})
    assert found.payload_schema == schema


def test_a_batch_read_refuses_what_only_a_stream_has() -> None:
    given = {"url": "x.db", "subscribe": "in", "schema": "kafka"}
    assert table_options({**given, "endingOffsets": "latest"}).queue == "in"
    with pytest.raises(InvalidArgument, match="startingOffsets must be earliest, got 'latest'"):
        table_options({**given, "startingOffsets": "latest"})
    with pytest.raises(InvalidArgument, match="no option 'maxOffsetsPerTrigger'"):
        table_options({**given, "maxOffsetsPerTrigger": "1"})


def test_the_options_of_kafka_are_read() -> None:
    given = {
        "schema": "kafka", "url": "x.db", "subscribe": "in", "kafka.group.id": "g",
        "startingTimestamp": "1000", "maxOffsetsPerTrigger": "7", "minPartitions": "3",
        "maxRecordsPerPartition": "9", "failOnDataLoss": "false", "includeHeaders": "true",
    }  # fmt: skip
    found = source_options(given)
    assert (found.queue, found.group, found.start, found.max_rows) == ("in", "g", 1_000_000, 7)
    assert (found.min_partitions, found.max_records_per_partition) == (3, 9)
    assert (found.fail_on_data_loss, found.include_headers) == (False, True)


# distribution


def tasks(*parts: tuple[int, int], **given: str) -> list[int]:
    """Distribute parts of (messages, bytes each) and return how many messages each task has."""
    options = source_options({"url": "x.db", "queue": "in", "parallelism": "2"} | given)
    planned = [PlannedPart(1, LaneId(n), 7, [0, rows], rows * size)
               for n, (rows, size) in enumerate(parts)]  # fmt: skip
    found = distribute(planned, options)
    every = sorted((p.lane, n) for task in found for p in task for n in ranges.numbers(p.ranges))
    assert every == [(n, at) for n, (rows, _) in enumerate(parts) for at in range(rows)]
    return [sum(ranges.count(part.ranges) for part in task) for task in found]


def test_small_messages_are_read_by_few_tasks_and_large_ones_by_all() -> None:
    assert tasks((4_000, 100)) == [4_000]
    assert tasks((30_000, 100), (10_000, 100)) == [20_000, 20_000]
    assert tasks((5, 1_000_000), (3, 1_000_000)) == [4, 4]


def test_tasks_are_as_many_and_as_small_as_asked() -> None:
    assert tasks((10, 10), minPartitions="6") == [2, 2, 1, 2, 2, 1]
    assert tasks((10, 10), maxRecordsPerPartition="4") == [4, 4, 2]
