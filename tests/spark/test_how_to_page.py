"""The how-to page on Spark, and the README's stream: what they show runs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ackflow

from ..docs.blocks import DOCS, ROOT, blocks, run_python, shown

UNTIL_STOPPED = "    .start()\n    .awaitTermination()"
ONCE = "    .trigger(availableNow=True).start()\n    .awaitTermination()"


def test_the_blocks_of_the_page_print_what_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for place, _, code, output in blocks(DOCS / "how-to" / "spark.md"):
        code = code.replace('"shop.db"', repr(str(tmp_path / "shop.db")))
        code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
        printed = run_python(code, names, place)
        assert output is not None
        assert shown(printed, output), f"{place} printed:\n{printed}"


def test_the_stream_of_the_readme_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [one for one in blocks(ROOT / "README.md") if "readStream" in one.code]
    assert UNTIL_STOPPED in block.code
    code = block.code.replace(UNTIL_STOPPED, ONCE)  # it would run until it is stopped
    code = code.replace('"shop.db"', repr(str(tmp_path / "shop.db")))
    code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
    run_python(code, {}, block.place)
    with ackflow.connect(tmp_path / "shop.db") as q:
        assert [message.data["id"] for message in q.pop("invoices", batch=10)] == [1, 2]
