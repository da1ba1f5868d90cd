"""A process is killed in the middle of a purge, seek or delete; the next one finishes it."""

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import ackflow

from tests.stateful.recount import Rows, check_rows  # isort: skip

LANES, EACH = 300, 4
WORKER = """
import os, sys
import ackflow
from ackflow.broker.core.upkeep import sweeps

path, way, slices = sys.argv[1], sys.argv[2], int(sys.argv[3])
sweeps.SLICE_SECONDS, sweeps.LANES_AT_ONCE, sweeps.ROWS_AT_ONCE = 0.0, 7, 50
run, left = sweeps.run_slice, [slices]

def run_slice(tx, id):
    if not left[0]:
        os.kill(os.getpid(), 9)  # in the middle of a transaction
    left[0] -= 1
    return run(tx, id)

sweeps.run_slice = run_slice
import ackflow.broker.broker as broker
broker.run_slice = run_slice
q = ackflow.connect(path, upkeep=False)
print("begun", flush=True)
{"purge": lambda: q.purge("q"), "seek": lambda: q.seek("q", "g", to="start"),
 "queue": lambda: q.delete_queue("q"), "group": lambda: q.delete_group("q", "g")}[way]()
print("survived", flush=True)
"""


@pytest.mark.parametrize("slices", [0, 1, 3, 9])
@pytest.mark.parametrize("way", ["purge", "seek", "queue", "group"])
def test_a_killed_sweep_is_finished_by_the_next_process(
    tmp_path: Path, way: str, slices: int
) -> None:
    path = tmp_path / "q.db"
    with ackflow.connect(path, upkeep=False, may_lose="everything") as q:
        for lane in range(LANES):
            q.push("q", [f"{lane}.{n}" for n in range(EACH)], partition=f"p{lane}")
        q.pop("q", group="g", batch=LANES * EACH // 2)
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, str(path), way, str(slices)], stdout=subprocess.PIPE
    )
    assert (ran.returncode, ran.stdout) == (-9, b"begun\n")
    with apsw.Connection(str(path)) as db:
        begun = db.execute("select count(*) from sweeps where ended_at is null").get
    assert begun == 1
    with ackflow.connect(path, upkeep=False) as q:
        q.push("q", "new", partition="p299")
        q.upkeep()
        assert all(sweep.ended_at is not None for sweep in q.sweeps())
        stored = LANES * EACH + 1 if way in ("seek", "group") else 1
        assert q.queue_stats("q").messages == stored
        found = 0
        while batch := q.pop("q", group="g", batch=1_000):
            found += len(batch)
        assert found == stored
        q.broker.read(lambda tx: check_rows(Rows(tx)))  # type: ignore[attr-defined]
