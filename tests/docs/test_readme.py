"""The blocks of the README run as they are written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ackflow

from .blocks import ROOT, Block, blocks, run_python

# Run by tests/client (consume loop), tests/postgres, tests/spark and tests/rabbitmq (Celery).
ELSEWHERE = (".consume(", "postgresql://", "readStream", "Celery(")
BLOCKS = [
    block
    for block in blocks(ROOT / "README.md")
    if not any(word in block.code for word in ELSEWHERE)
]


@pytest.fixture
def names(tmp_path: Path) -> Iterator[dict[str, object]]:
    """What the blocks take for granted: a session and some leased messages."""
    with ackflow.connect(tmp_path / "orders.db") as q:
        q.push("orders", [{"id": n} for n in range(4)])
        good, bad, ugly, message = q.pop("orders", group="billing", batch=4)
        with q.transaction() as t:  # the block expects a value at version 7
            t.put("last-invoice", 0)
        for version in range(1, 7):
            with q.transaction() as t:
                t.put("last-invoice", version)
        yield {
            "ackflow": ackflow, "q": q, "good": good, "bad": bad, "ugly": ugly,
            "message": message, "handle": lambda data: None,
        }  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_runs(
    block: Block,
    names: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block.code.replace("wait=20", "wait=0.1")
    session = names["q"]
    run_python(code, names, block.place)
    if names["q"] is not session:
        names["q"].close()  # type: ignore[attr-defined]
    if "worker" in names:
        names["worker"].close()  # type: ignore[attr-defined]


def test_the_readme_has_blocks() -> None:
    assert len(BLOCKS) >= 5
