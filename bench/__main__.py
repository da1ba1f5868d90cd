"""Run the benchmarks: `python -m bench [--quick] [--only NAME] [--sync-ms N] [--json FILE]`."""

import argparse
import gc
import json
import platform
import time
from pathlib import Path

import apsw

from . import (
    amqp,
    client,
    compare,
    dashboard,
    databases,
    endurance,
    engine,
    heavy,
    measure,
    pipeline,
    postgres,
    scale,
    server,
    slow_sync,
    spark,
    worker,
)
from .measure import FULL, QUICK, make_messages

PARTS = {
    "engine": engine.run,
    "scale": scale.run,
    "endurance": endurance.run,
    "compare": compare.run,
    "postgres": postgres.run,
    "databases": databases.run,
    "server": server.run,
    "heavy": heavy.run,
    "client": client.run,
    "spark": spark.run,
    "pipeline": pipeline.run,
    "worker": worker.run,
    "amqp": amqp.run,
    "dashboard": dashboard.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller queues")
    parser.add_argument(
        "--sync-ms",
        type=float,
        metavar="N",
        help="every sync takes at least N ms, as on a slower disk",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    options = parser.parse_args()
    if options.sync_ms:
        slow_sync.apply(options.sync_ms)
    plan = QUICK if options.quick else FULL
    start = time.perf_counter()
    messages = make_messages(plan.messages)
    gc.freeze()
    machine = f"{platform.machine()}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    print(f"{machine}; messages of 200 bytes of JSON, one thread; {measure.sync_time()}")
    tables = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            # This part takes fifteen minutes, so it must be selected.
            briefly = name == "endurance" and options.only is None
            for table in part(messages, QUICK if briefly else plan):
                print(table.show(), flush=True)
                tables.append(table)
    missed = sum(table.missed for table in tables)
    took = time.perf_counter() - start
    judged = sum(row.target is not None for table in tables for row in table.rows)
    verdict = f"{judged - missed} of {judged} targets hold" if judged else "no targets here"
    noisy = "" if all(t.quiet for t in tables) else ", but the machine was NOISY: run it again"
    print(f"\n{verdict}{noisy}; took {took:.0f} s")
    if options.json:
        found = {"machine": machine, "quick": options.quick, "tables": [t.plain() for t in tables]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
