"""`ackflow copy` is killed again and again; the last run completes what the first one began."""

import subprocess
import sys
import time
from pathlib import Path

import ackflow

MESSAGES, PARTITIONS = 40_000, 8
STEP = 3 << 20  # how much a run may write before it is killed; all messages are 20 MB


def written(folder: Path) -> int:
    """The bytes of the target and of its log."""
    return sum(file.stat().st_size for file in folder.glob("two.db*") if file.exists())


def test_a_copy_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one.db"), str(tmp_path / "two.db")
    with ackflow.connect(one, may_lose="everything", upkeep=False) as q:
        for partition in range(PARTITIONS):
            for start in range(0, MESSAGES // PARTITIONS, 1000):
                names = [f"{partition}-{start + i}-" + "x" * 500 for i in range(1000)]
                q.push("orders", names, partition=f"p{partition}")
        done = q.pop("orders", group="g", batch=7000, partitions=PARTITIONS)
        q.ack(done[:5000])
        q.nack(done[5000:6000], "again")
        q.reject(done[6000:6500], "no")
        acked = {message.data for message in done[:5000]}
        dead = {message.data for message in done[6000:6500]}
        q.release(done[6500:])
        counts = q.group_stats("orders", "g").counts
    command = [sys.executable, "-m", "ackflow", "copy", one, other, "--wait", "0"]
    kills = 0
    for _ in range(6):
        copied = written(tmp_path)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and written(tmp_path) < copied + STEP:
            time.sleep(0.002)
        kills += process.poll() is None
        process.kill()
        process.wait()
    last = subprocess.run(command, capture_output=True, text=True, check=False)
    finished = last.returncode == 0 or "exists at the target" in last.stderr
    assert finished, last.stderr
    assert kills > 0
    with ackflow.connect(other, upkeep=False) as q:
        assert q.group_stats("orders", "g").counts == counts
        assert {letter.data for letter in q.dead_letters("orders", limit=1000)} == dead
        seen: list[str] = []
        while batch := q.pop("orders", group="g", batch=10_000, partitions=PARTITIONS):
            seen += [message.data for message in batch]
            q.ack(batch)
        assert len(seen) == len(set(seen)) == MESSAGES - len(acked) - len(dead)
        assert not (set(seen) & (acked | dead))
