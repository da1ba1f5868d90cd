"""`make demo`: shows step by step what happens to messages when consumers crash and fail.

Nothing is simulated: the consumer that crashes is a real process, killed with SIGKILL.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ackflow

from .pipeline import example
from .pipeline.declaration import load_module

CONSUMER = """
import sys, time, ackflow
q = ackflow.connect(sys.argv[1], consumer="worker-1")
batch = q.pop("orders", group="billing", batch=3, lease_seconds=1.5)
batch[0].ack(confirm=True)
print("holding", len(batch), flush=True)
time.sleep(600)
"""


def show(text: str) -> None:
    print(text, flush=True)


def step(number: int, title: str) -> None:
    show(f"\n{number}. {title}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ackflow-demo-") as folder:
        path = str(Path(folder) / "orders.db")
        show(f"Ackflow {ackflow.__version__}: the fate of every message\n{'=' * 48}")
        with ackflow.connect(path, consumer="worker-2") as q:
            run_steps(q, path)
    show("\nDone: every message is accounted for.")
    pipeline = load_module(example("coffee_shop_demo"))
    return int(pipeline["main"]()) if pipeline["can_run"]() else 0


def run_steps(q: ackflow.Session, path: str) -> None:
    step(1, "A producer pushes five orders; they are on disk when push returns.")
    q.group("orders", "billing", ordering="ordered", retry_limit=2, backoff=[0.2])
    ids = q.push("orders", [{"order": n, "total": 10 * n} for n in range(1, 6)], partition="eu")
    for order, id in enumerate(ids, 1):
        show(f"   order {order} is message {id}")

    step(2, "worker-1 pops three, acks the first, and is killed with SIGKILL.")
    crash_a_consumer(path)
    explain(q, "order 1", ids[0])
    explain(q, "order 2", ids[1])
    explain(q, "order 4", ids[3])

    step(3, "Its lease expires; the two unfinished orders are redelivered in their original order.")
    started = time.monotonic()
    batch = q.pop("orders", group="billing", batch=2, wait=10)
    show(f"   after {time.monotonic() - started:.1f} s worker-2 got:")
    for message in batch:
        show(f"   order {message.data['order']}, delivery {message.deliveries}, "
            f"redelivered={message.redelivered}")  # fmt: skip

    step(4, "worker-2 acks order 2, and fails twice at order 3.")
    batch[0].ack()
    batch[1].nack("card declined")
    explain(q, "order 3", ids[2])
    (again,) = q.pop("orders", group="billing", wait=10)
    again.nack("card declined again")
    explain(q, "order 3", ids[2])

    step(5, "The cause is fixed: the dead letter is redriven to its group.")
    for line in q.dead_summary("orders"):
        show(f"   {line.count} dead letter: {line.error!r} in group {line.group}")
    redriven = q.redrive("orders")
    show(f"   redriven: {redriven}, as a copy for its group")

    step(6, "The rest is processed; each ack and its invoice are one transaction.")
    while batch := q.pop("orders", group="billing", batch=10):
        for message in batch:
            with q.transaction() as t:
                t.ack(message)
                t.push("invoices", {"invoice for": message.data["order"]})
            show(f"   order {message.data['order']} done, invoice pushed")

    counts = q.group_stats("orders", "billing").counts
    invoices = q.queue_stats("invoices").messages
    show(f"\n   billing: {counts.pushed - redriven} orders pushed and {redriven} redriven; "
        f"{counts.done} done, {counts.dead} dead, {counts.lag} outstanding; {invoices} invoices")  # fmt: skip
    if counts.lag or counts.dead or counts.done != counts.pushed or invoices != 3:
        raise SystemExit("the demo ended with messages unaccounted for")


def crash_a_consumer(path: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONSUMER, path], stdout=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdout is not None
        held = consumer.stdout.readline()
        os.kill(consumer.pid, signal.SIGKILL)
    if not held.startswith("holding"):
        raise SystemExit("the consumer did not start")
    show(f"   process {consumer.pid} was killed")


def explain(q: ackflow.Session, what: str, id: str) -> None:
    show(f"   why {what}? {q.why('orders', id, group='billing')}")


if __name__ == "__main__":
    sys.exit(main())
