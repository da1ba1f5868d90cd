"""Messages to Arrow and back without Spark: every column, every shape of run."""

import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from ackflow import Item, Session
from ackflow.errors import InvalidArgument, NotFound
from ackflow.ids import message_id
from ackflow.spark import sessions
from ackflow.spark.columns import RowBuilder, _id_texts
from ackflow.spark.encode import Chunker, check_columns
from ackflow.spark.options import SinkOptions, sink_options, source_options
from ackflow.spark.parse import Parser, invalid_utf8_rows


def rows_of(q: Session, batch: int = 1000) -> tuple[RowBuilder, list[object]]:
    messages = q.pop("orders", group="g", batch=batch)
    assert messages.token is not None
    handout = q.read_again(messages.token)
    rows = RowBuilder()
    for run in handout.runs:
        rows.add(handout, run)
    return rows, list(messages)


def test_columns_say_what_the_messages_say(q: Session) -> None:
    for n in range(5):
        q.push("orders", [{"n": n}, b"\x00\xff"], partition=f"p{n % 2}", priority=n % 3)
    q.push("orders", [Item(data=1, headers={"a": "b"}, transaction_id="t"), Item(data=2)])
    q.pop("orders", group="g", batch=3)[1].nack("x")
    rows, messages = rows_of(q)
    columns = {**rows.columns(), "payload": rows.payloads()}
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
    columns = rows.columns()
    assert columns["transaction_id"].to_pylist() == ["t3", "t4", "t5", "t6"]
    assert [dict(h)["n"] for h in columns["headers"].to_pylist()] == ["3", "4", "5", "6"]
    assert [rows.locate(row)[1] for row in range(4)] == [3, 4, 5, 6]


@pytest.mark.parametrize("lo", [0, 65_530, 65_536, (1 << 32) - 5, (1 << 47) + 1])
def test_ids_are_right_across_blocks(lo: int) -> None:
    text = b"".join(_id_texts(12345, 678, lo, lo + 20)).decode()
    found = [text[at : at + 36] for at in range(0, len(text), 36)]
    assert found == [message_id(12345, 678, n) for n in range(lo, lo + 20)]


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
