"""The coffee-shop pipeline end to end, against the same four queries as one plain Spark job.

The plain job reads the CSV files without any guarantee and is the upper limit. The measured time
includes the start of the processes.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ackflow.pipeline import example
from ackflow.pipeline.declaration import load_module

from . import peers
from .measure import Json, Plan, folder, seconds
from .report import Row, Table, Target

OURS, PLAIN = "Ackflow", "plain Spark"
SIZES, QUICK_SIZES = (100_000, 1_000_000), (2_000, 20_000)
MB = 1 << 20


def run(messages: Sequence[Json], plan: Plan) -> list[Table]:
    if missing := peers.spark_missing():
        print(f"\nThe pipeline is left out: {missing}")
        return []
    sizes = SIZES if len(messages) >= 200_000 else QUICK_SIZES
    with folder() as path:
        return measure(path, sizes)


def measure(path: Path, sizes: Sequence[int]) -> list[Table]:
    """Measure both sides at a small and a large size, and Ackflow on one core at the large one."""
    rates = Table("Pipeline: transactions per second, all processes started anew", (OURS, PLAIN))
    cpu = Table("Pipeline: seconds of CPU", (OURS, PLAIN))
    small, large = sizes
    ours: dict[int, Measured] = {}
    drivers: dict[int, float] = {}
    for size in sizes:
        data = generated(path, size)
        peaks: dict[str, float] = {}
        ours[size] = measured_run(data, path / f"out-{size}", peaks)
        plain = _measured(lambda d=data: _plain(d))  # type: ignore[misc]
        name = f"{size:,} transactions"
        rates.rows.append(
            Row(name, "tx/s", [size / ours[size].wall], [size / plain.wall],
                Target(0.8) if size == large else None)
        )  # fmt: skip
        cpu.rows.append(
            Row(name, "s", [ours[size].cpu], [plain.cpu],
                Target(1.25, at_least=False) if size == large else None)
        )  # fmt: skip
        drivers[size] = peaks["spark"]
        told = ", ".join(f"{name} {peak / MB:.0f} MB" for name, peak in sorted(peaks.items()))
        rates.notes.append(f"peak memory at {size:,}: {told}")
    title = f"Pipeline: from {small:,} to {large:,} transactions"
    growth = Table(title, (f"{large:,}", f"{small:,}"))
    growth.rows += [
        Row("time per transaction", "µs", [1e6 * ours[large].wall / large],
            [1e6 * ours[small].wall / small], Target(1.1, at_least=False)),
        Row("peak memory of the driver", "MB", [drivers[large] / MB], [drivers[small] / MB],
            Target(1.2, at_least=False)),
    ]  # fmt: skip
    with one_core():
        alone = measured_run(generated(path, large), path / "out-1", {}, master="local[1]")
    cores = Table("Pipeline: two cores against one", ("2 cores", "1 core"))
    cores.rows.append(
        Row(f"{large:,} transactions", "tx/s", [large / ours[large].wall], [large / alone.wall],
            Target(1.6))
    )  # fmt: skip
    return [rates, cpu, growth, cores]


def generated(path: Path, size: int) -> Path:
    """Return a folder with the data of one client."""
    data = path / f"data-{size}"
    if not data.exists():
        load_module(example("coffee_shop_data"))["generate"](data, size, 1, seed=1)
    return data


def measured_run(
    data: Path, out: Path, peaks: dict[str, float], master: str = "local[2]"
) -> "Measured":
    return _measured(lambda: _ours(data, out, peaks, master))


@contextmanager
def one_core() -> Iterator[None]:
    """Let this process, and those that it starts, use one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Measured(NamedTuple):
    """The time of something, the CPU time of all processes it started, and their peak memory."""

    wall: float
    cpu: float
    peak: float


def _measured(work: Callable[[], object]) -> Measured:
    """Measure by sampling, since a JVM outlives the process that started it."""
    used: dict[tuple[int, float], float] = {}
    sizes = [0.0]
    over = threading.Event()

    def sample() -> None:
        me = psutil.Process()
        while not over.wait(0.1):
            size = 0
            for process in me.children(recursive=True):
                try:
                    times = process.cpu_times()
                    used[process.pid, process.create_time()] = times.user + times.system
                    size += process.memory_info().rss
                except psutil.Error:
                    continue
            sizes.append(size)

    watch = threading.Thread(target=sample, daemon=True)
    watch.start()
    try:
        wall = seconds(work)
    finally:
        over.set()
        watch.join()
    return Measured(wall, sum(used.values()), max(sizes))


def _ours(data: Path, out: Path, peaks: dict[str, float], master: str) -> None:
    from ackflow.pipeline.run import Run
    from ackflow.pipeline.stages import Settings

    settings = Settings(
        data=str(data), out=str(out), declaration=str(example("coffee_shop")), master=master
    )
    found = Run(settings, lambda _: None)
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(found, peaks, over), daemon=True)
    watch.start()
    try:
        found.run()
    finally:
        over.set()
        watch.join()


def _watch(found: Any, peaks: dict[str, float], over: threading.Event) -> None:
    """Record the peak memory of each stage, including its child processes."""
    while not over.wait(0.5):
        for name, process in list(found.processes.items()):
            try:
                root = psutil.Process(process.pid)
                # A process shows the memory of the JVM until it begins the command that it is for.
                begun = [p for p in root.children(recursive=True)
                         if time.time() - p.create_time() > 0.3]  # fmt: skip
                size = sum(p.memory_info().rss for p in [root, *begun])
            except psutil.Error:
                continue
            peaks[name] = max(peaks.get(name, 0.0), size)


def _plain(data: Path) -> None:
    subprocess.run([sys.executable, "-m", "bench.pipeline", str(data / "client1")], check=True)


QUESTIONS = (
    """select transaction_id, final_amount from tx where year in (2024, 2025)
       and hour between 6 and 23 and final_amount >= 75 order by transaction_id""",
    """select * from (select *, row_number() over (partition by month order by q desc, name) a,
       row_number() over (partition by month order by r desc, name) b from (
       select month, item_name name, sum(quantity) q, sum(subtotal) r from items
       join menu_items using (item_id) where year in (2024, 2025) group by month, item_name))
       where a = 1 or b = 1 order by month""",
    """select store_name, year, half, sum(final_amount) from tx join stores using (store_id)
       where year in (2024, 2025) and hour between 6 and 23 group by all order by all""",
    """select store_name, birthdate, n from (select *, row_number() over (partition by store_id
       order by n desc, cast(user_id as int)) place from (select store_id, user_id, count(*) n
       from tx where year in (2024, 2025) and user_id <> '' group by all)) join stores
       using (store_id) left join people using (user_id) where place <= 3 order by all""",
)
USER = "regexp_replace(trim(coalesce(user_id, '')), '[.]0+$', '')"


def plain(folder: Path) -> int:
    """Run the four queries over the files of one client; return the number of rows."""
    import ackflow.spark

    conf = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = ackflow.spark.session("plain", "local[2]", **conf)
    for name, files in (("menu_items", "menu_items.csv"), ("stores", "stores.csv"),
                        ("users", "users_*.csv"), ("sales", "transactions_*.csv"),
                        ("sold", "transaction_items_*.csv")):  # fmt: skip
        frame = spark.read.option("header", True).csv(str(folder / files))
        frame.createOrReplaceTempView(name)
    at = "try_to_timestamp(created_at, 'yyyy-MM-dd HH:mm:ss')"
    when = f"year({at}) year, hour({at}) hour, if(month({at}) < 7, 1, 2) half"
    amount = "coalesce(try_cast({0} as decimal(18,6)), 0) {0}"
    spark.sql(f"select transaction_id, store_id, {USER} user_id, {when}, "
              f"{amount.format('final_amount')} from sales").createOrReplaceTempView("tx")  # fmt: skip
    spark.sql(f"select item_id, {when}, date_format({at}, 'yyyy-MM') month, "
              f"{amount.format('quantity')}, {amount.format('subtotal')} from sold"
              ).createOrReplaceTempView("items")  # fmt: skip
    spark.sql(f"select {USER} user_id, birthdate from users").createOrReplaceTempView("people")
    rows = sum(len(spark.sql(question).collect()) for question in QUESTIONS)
    spark.stop()
    return rows


if __name__ == "__main__":
    began = time.perf_counter()
    print(f"{plain(Path(sys.argv[1]))} rows in {time.perf_counter() - began:.1f} s", flush=True)
