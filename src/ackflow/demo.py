"""`make demo`: what becomes of messages when consumers crash, fail and give up, told as a story.

Nothing here is simulated: the consumer that crashes is a process of its own, killed with SIGKILL.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ackflow

from .pipeline import demo as pipeline

CONSUMER = """
import sys, time, ackflow
q = ackflow.connect(sys.argv[1], consumer="worker-1")
batch = q.pop("orders", group="billing", batch=3, lease_seconds=1.5)
batch[0].ack(confirm=True)
print("holding", len(batch), flush=True)
time.sleep(600)
"""


def say(text: str) -> None:
    print(text, flush=True)


def step(number: int, title: str) -> None:
    say(f"\n{number}. {title}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ackflow-demo-") as folder:
        path = str(Path(folder) / "orders.db")
        say(f"Ackflow {ackflow.__version__}: what became of every message\n{'=' * 48}")
        with ackflow.connect(path, consumer="worker-2") as q:
            story(q, path)
    say("\nDone: every message is accounted for.")
    return pipeline.main() if pipeline.can_run() else 0


def story(q: ackflow.Session, path: str) -> None:
    step(1, "A producer pushes five orders; they are on disk when push returns.")
    q.group("orders", "billing", ordering="ordered", retry_limit=2, backoff=[0.2])
    ids = q.push("orders", [{"order": n, "total": 10 * n} for n in range(1, 6)], partition="eu")
    for order, id in enumerate(ids, 1):
        say(f"   order {order} is message {id}")

    step(2, "worker-1 takes three, finishes the first, and is killed with -9.")
    crash_a_consumer(path)
    tell(q, "order 1", ids[0])
    tell(q, "order 2", ids[1])
    tell(q, "order 4", ids[3])

    step(3, "Its lease runs out; the two it did not finish come again, in their old place.")
    started = time.monotonic()
    batch = q.pop("orders", group="billing", batch=2, wait=10)
    say(f"   after {time.monotonic() - started:.1f} s worker-2 got:")
    for message in batch:
        say(f"   order {message.data['order']}, delivery {message.deliveries}, "
            f"redelivered={message.redelivered}")  # fmt: skip

    step(4, "worker-2 finishes order 2, and fails twice at order 3.")
    batch[0].ack()
    batch[1].nack("card declined: try later")
    tell(q, "order 3", ids[2])
    (again,) = q.pop("orders", group="billing", wait=10)
    again.nack("card declined: again")
    tell(q, "order 3", ids[2])

    step(5, "The cause is fixed: the dead letter is sent back to the group it belongs to.")
    for line in q.dead_summary("orders"):
        say(f"   {line.count} dead of {line.error!r} in group {line.group}")
    redriven = q.redrive("orders")
    say(f"   redriven: {redriven}, as a copy for its group")

    step(6, "Everything left is done; an invoice is pushed in the same transaction as each ack.")
    while batch := q.pop("orders", group="billing", batch=10):
        for message in batch:
            with q.transaction() as t:
                t.ack(message)
                t.push("invoices", {"invoice for": message.data["order"]})
            say(f"   order {message.data['order']} done, invoice pushed")

    counts = q.group_stats("orders", "billing").counts
    invoices = q.queue_stats("invoices").messages
    say(f"\n   billing: {counts.pushed - redriven} orders pushed and {redriven} redriven; "
        f"{counts.done} done, {counts.dead} dead, {counts.lag} left; {invoices} invoices")  # fmt: skip
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
    say(f"   process {consumer.pid} is dead")


def tell(q: ackflow.Session, what: str, id: str) -> None:
    say(f"   why {what}? {q.why('orders', id, group='billing')}")


if __name__ == "__main__":
    sys.exit(main())
