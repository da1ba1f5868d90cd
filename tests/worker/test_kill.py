"""Workers killed with -9 under load: nothing is lost, and transactions have one result."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import ackflow

from .conftest import SRC
from .killed import EACH


def killed(folder: Path, kills: int, seconds: float) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    subprocess.run(
        [sys.executable, Path(__file__).with_name("killed.py"), folder, str(kills), str(seed)],
        env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=seconds, check=True,
    )  # fmt: skip
    expected = set(range(kills * EACH))
    processed = Counter(map(int, (folder / "processed").read_text().split()))
    assert set(processed) == expected  # each at least once
    with ackflow.connect(folder / "q.db") as q:
        stats = q.group_stats("work", "__QUEUE_MODE__")
        assert stats.counts.lag == 0
        assert stats.dead_letters == 0
        done = Counter(m.data for m in q.pop("done", batch=100_000))
    assert done == Counter(expected)  # each exactly once: its push is in the transaction of its ack


def test_twenty_kills_lose_nothing_and_send_everything_once(tmp_path: Path) -> None:
    killed(tmp_path, 20, 120)


@pytest.mark.soak
def test_two_hundred_kills_lose_nothing_and_send_everything_once(tmp_path: Path) -> None:
    killed(tmp_path, 200, 1800)
