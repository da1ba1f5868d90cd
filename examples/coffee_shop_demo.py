"""The second half of `make demo`: the coffee shop pipeline, with Spark's driver killed half-way."""

import json
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from ackflow.errors import AckflowError
from ackflow.pipeline import example, progress
from ackflow.pipeline import run as runs
from ackflow.pipeline.declaration import load_module
from ackflow.pipeline.run import Run
from ackflow.pipeline.stages import Settings

TRANSACTIONS, CLIENTS = 2_000, 2
SHOWN_ROWS = 3
STANDBY_TIMEOUT = 90.0


def main(folder: Path | None = None) -> int:
    """Generate data, run the pipeline, kill its driver, show the answers; return an exit code."""
    folder = folder or Path(tempfile.gettempdir()) / "ackflow-demo"
    shutil.rmtree(folder, ignore_errors=True)
    data, out = folder / "data", folder / "out"
    print(f"\nA pipeline on Spark\n{'=' * 19}")
    load_module(example("coffee_shop_data"))["generate"](data, TRANSACTIONS, CLIENTS, 1)
    print(f"{CLIENTS} clients with {TRANSACTIONS:,} transactions each are in {data}")
    # Small blocks and batches, so that the driver can be killed half-way. The standby, which runs
    # of this length do not have, starts at once.
    runs.STANDBY_AFTER = 0.0
    settings = Settings(
        data=str(data), out=str(out), declaration=str(example("coffee_shop")),
        block_bytes=16_384, messages=40,
    )  # fmt: skip
    run = Run(settings, _print)
    killer = _Killer()
    began = time.monotonic()
    run.run(each=killer)
    print(f"all answers after {time.monotonic() - began:.0f} s; "
          "Spark was killed, and no message was lost:")  # fmt: skip
    for line in _redeliveries(out / "spark.log"):
        print(f"   {line}")
    show(out, run.clients[0])
    print(f"\nThe timeline of the run is {progress.write(out)}")
    return 0 if killer.killed else 1


class _Killer:
    """Kills Spark's driver when it holds end-of-file messages and its standby is ready.

    One worker is paused until then: the driver holds the ends of the others while its own is
    missing.
    """

    def __init__(self) -> None:
        self.killed = False
        self._until = 0.0

    def __call__(self, run: Run) -> None:
        worker = run.processes["worker-0"]
        if not self._until:
            self._until = time.monotonic() + STANDBY_TIMEOUT
            worker.send_signal(signal.SIGSTOP)
            _print("worker-0 is paused, so that Spark holds end-of-file messages")
        elif not self.killed and sum(run.progress().values()) > 0 and self._is_due(run):
            self.killed = True
            _print(f"killing Spark's driver (process {run.processes['spark'].pid}) with SIGKILL")
            run.kill("spark")
            worker.send_signal(signal.SIGCONT)

    def _is_due(self, run: Run) -> bool:
        return run.standby.ready or time.monotonic() > self._until


def show(out: Path, client: str) -> None:
    """Print the first rows of each answer of a client."""
    print(f"\nThe answers for {client}, the first rows of each:")
    for path in sorted((out / client).glob("*_results.json")):
        records = json.loads(path.read_text(encoding="utf-8"))
        print(f"\n   {path.stem}: {len(records)} rows")
        for line in _table(records[:SHOWN_ROWS]):
            print(f"   {line}")


def _table(records: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [names, *([str(record.get(name, "")) for name in names] for record in records)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _redeliveries(path: Path) -> list[str]:
    """Return log lines of end-of-file messages that the dead driver had held."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    again = [line for line in lines if "REDELIVERED" in line]
    return [line[line.index("TABLE_EOF") :] for line in again[:2]]


def _print(text: str) -> None:
    print(f"   {text}", flush=True)


def can_run() -> bool:
    """Return whether Spark can run here; print the reason if not."""
    try:
        from ackflow.spark.spark_session import find_java

        find_java()
    except AckflowError as missing:
        print(f"\nSkipping the pipeline: {missing}")
        return False
    return True
