"""The second half of `make demo`: the coffee shops, with the router killed half-way."""

import json
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from ..errors import AckflowError
from . import chart
from .examples.generate import generate
from .run import Run
from .stages import Settings

TRANSACTIONS, CLIENTS = 2_000, 2
SHOWN = 3
PATIENCE = 90.0  # how long a standby is waited for


def main(folder: Path | None = None) -> int:
    """Generate, run, kill, recover, show; answers 0 when every client has its four answers."""
    folder = folder or Path(tempfile.gettempdir()) / "ackflow-demo"
    shutil.rmtree(folder, ignore_errors=True)
    data, out = folder / "data", folder / "out"
    print(f"\nA pipeline on Spark\n{'=' * 19}")
    generate(data, TRANSACTIONS, CLIENTS, seed=1)
    print(f"{CLIENTS} clients with {TRANSACTIONS:,} transactions each are in {data}")
    # Small batches, so that there is a half-way to be killed at.
    run = Run(Settings(data=str(data), out=str(out), rows=200, messages=40), _say)
    killer = _Killer()
    began = time.monotonic()
    run.run(each=killer)
    print(f"all answers after {time.monotonic() - began:.0f} s; "
          "the router was killed and lost nothing:")  # fmt: skip
    for line in _told(out / "router.log"):
        print(f"   {line}")
    show(out, run.clients[0])
    print(f"\nThe timeline of the run is {chart.write(out)}")
    return 0 if killer.killed else 1


class _Killer:
    """Kills the router when it holds ends of file and its standby is ready.

    One worker is stopped meanwhile: the ends of the others are held until its own has come.
    """

    def __init__(self) -> None:
        self.killed = False
        self._until = 0.0

    def __call__(self, run: Run) -> None:
        worker = run.processes["worker-0"]
        if not self._until:
            self._until = time.monotonic() + PATIENCE
            worker.send_signal(signal.SIGSTOP)
            _say("worker-0 is stopped, so that ends of file are held")
        elif not self.killed and sum(run.progress().values()) > 0 and self._time(run):
            self.killed = True
            _say(f"the router (process {run.processes['router'].pid}) is killed with -9")
            run.kill("router")
            worker.send_signal(signal.SIGCONT)

    def _time(self, run: Run) -> bool:
        return run.standby.ready or time.monotonic() > self._until


def show(out: Path, client: str) -> None:
    """The beginning of each answer of a client, as tables."""
    print(f"\nThe answers for {client}, the first rows of each:")
    for path in sorted((out / client).glob("*_results.json")):
        records = json.loads(path.read_text(encoding="utf-8"))
        print(f"\n   {path.stem}: {len(records)} rows")
        for line in _table(records[:SHOWN]):
            print(f"   {line}")


def _table(records: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [names, *([str(record.get(name, "")) for name in names] for record in records)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _told(path: Path) -> list[str]:
    """What the log says of one end of file that was held when the router died."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    again = [line for line in lines if "REDELIVERED" in line]
    return [line[line.index("TABLE_EOF") :] for line in again[:2]]


def _say(text: str) -> None:
    print(f"   {text}", flush=True)


def can_run() -> bool:
    """Whether Spark can run here; says so if it cannot."""
    try:
        from ..spark.spark_session import find_java

        find_java()
    except AckflowError as missing:
        print(f"\nThe pipeline is left out: {missing}")
        return False
    return True
