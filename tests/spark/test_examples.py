"""The examples for Spark do what they say."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "spark_queue_to_queue": ["8 invoices", "9 orders done"],
    "spark_verdicts": ["batch 0 published 7", "7 booked, 2 rejected, 1 held"],
    "spark_tables": ["too old", "workers"],
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(
    spark: SparkSession, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](str(tmp_path))
    said = capsys.readouterr().out
    for line in SAYS[name]:
        assert line in said


def test_every_example_for_spark_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("spark_*.py")} == set(SAYS)
