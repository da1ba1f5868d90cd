"""A database with a bit of everything that the dashboard shows, made by the packages that make it."""

import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.broker import presence
from ackflow.broker.broker import Broker
from ackflow.broker.sharded.broker import ShardedBroker
from ackflow.clock import SECOND
from ackflow.model import when
from ackflow.pipeline import Pipeline, Table
from ackflow.pipeline.eof import EofForwarder, HeldEof
from ackflow.pipeline.state import (
    EndOfTable,
    Handled,
    TableKey,
    announce_clients,
    record_recovery,
)
from ackflow.worker import (
    Jobs,
    RunningJob,
    RunningMessage,
    Schedules,
    ServedQueue,
    WorkerInfo,
    cron,
    every,
)

SECRET_CARD = "4111111111111111"
BIG = 90071992547409931234567890

ERRORS = (
    "timeout: card service did not answer in 30 s",
    "HTTP 502 from https://pay.example/charge/{n}",
    "customer {n} not found",
)


def order(n: int) -> dict[str, Any]:
    return {
        "id": n, "customer": {"name": f"Customer {n % 40}", "vip": n % 7 == 0},
        "total": 19.90 + n, "exact": BIG, "card": {"number": SECRET_CARD, "expires": "12/29"},
        "password": "hunter2", "items": [{"sku": f"T-{n % 9}", "count": 1 + n % 3}],
    }  # fmt: skip


def seed(q: Session, clock: VirtualClock, history: int = 70) -> None:
    """Fill a database as if a shop had used it for some time."""
    board = q.broker
    assert isinstance(board, Broker | ShardedBroker)
    brokers = brokers_of(q)
    several = len(brokers) > 1
    schedules = (
        Schedules(q) if several else _schedules(q)
    )  # a tick is in one database with its queue
    q.configure("orders", retry_limit=2, max_size=1_000_000)
    q.group("orders", "billing", lease_seconds=600, retry_limit=2)
    q.group("orders", "shipping", ordering="ordered")
    for minute in range(history):
        wave = 30 + int(25 * math.sin(minute / 9)) + (minute * 7) % 13
        q.push("orders", [order(n) for n in range(wave)], partition=f"shop-{minute % 4}")
        q.push("mails.welcome", [{"to": f"user{n}@example.org"} for n in range(wave // 3)])
        q.ack(q.pop("orders", group="billing", batch=max(1, wave - 4)))
        q.ack(q.pop("orders", group="shipping", batch=wave // 2))
        q.pop("mails.welcome", batch=wave // 3, auto_ack=True)
        clock.advance(60)
        schedules.run_due()
        for broker in brokers:
            broker.sampler.run_once()
    for broker in brokers:
        broker.sampler.flush()
    _failures(q)
    held = q.pop("orders", group="billing", batch=12, consumer="billing-7f2c")
    assert held
    q.pop("orders", group="shipping", batch=3, consumer="shipping-a1")
    late = q.pop("orders", group="billing", batch=2, consumer="billing-1")
    late[0].nack("timeout: card service did not answer in 30 s", delay=900)
    late[1].release()
    q.push("orders", {"id": "later"}, delay=timedelta(hours=2), headers={"source": "import"})
    q.push("reports", [{"day": n} for n in range(5)])
    q.push(
        "invoices.eu", Item(data={"n": 1}, transaction_id="inv-2026-001", headers={"tenant": "eu"})
    )
    q.push("invoices.eu", b"\x00\x01binary\xff")
    q.push("paused.queue", {"n": 1})
    q.pop("paused.queue")[0].release()
    q.pause("paused.queue")
    if not several:
        jobs(q)
        pipeline(q, clock)
        _workers(q, clock)
    _brokers(brokers[0])
    board.stats.take()


def brokers_of(q: Session) -> list[Broker]:
    """The brokers of all databases of a session."""
    if isinstance(q.broker, ShardedBroker):
        return [one.opened for one in q.broker.databases if one.opened is not None]
    assert isinstance(q.broker, Broker)
    return [q.broker]


def _brokers(broker: Broker) -> None:
    """Three processes that have the database open; the first runs upkeep."""
    for name, program, host, pid, hours in (
        (broker._name, "ackflow serve", "shop-1", 812, 71), ("b2", "ackflow work", "shop-2", 4711, 26),
        ("c3", "billing.py", "shop-2", 4802, 2),
    ):  # fmt: skip
        identity = presence.Identity(program, host, pid, ackflow.__version__)
        age = hours * 3_600 * SECOND
        broker.write(partial(presence.announce, name=name, identity=identity, age=age))


def _workers(q: Session, clock: VirtualClock) -> None:
    """A worker at work, and one that waits for messages."""
    now = clock.now()
    bills = [
        RunningMessage("orders", "billing", str(message.id), "bill", when(now - n * 9 * SECOND))
        for n, message in enumerate(q.browse("orders", limit=5).items)
    ]
    for id, pid, queues, running, done in (
        ("01", 4711, [ServedQueue("orders", "billing", ["bill"])], bills, 48_210),
        ("02", 4712, [ServedQueue("mails.welcome", "__QUEUE_MODE__", ["welcome", "remind"]),
                      ServedQueue("reports", "__QUEUE_MODE__", ["report"])], [], 1_302),
    ):  # fmt: skip
        info = WorkerInfo(
            id=id, consumer=f"shop-2:{pid}", host="shop-2", pid=pid, version=ackflow.__version__,
            started_at=when(now - 26 * 3_600 * SECOND), seen_at=when(now), queues=queues,
            mode="round-robin", concurrency=8, busy=len(running), running=running,
            received=done + len(running), acked=done, rejected=2, requeued=0,
            failed=3 if running else 0, put_off=0, returned=0, lost=0,
        )  # fmt: skip
        with q.transaction() as t:
            t.put(f"workers/{id}", msgspec.to_builtins(info), ttl=60)


def _schedules(q: Session) -> Schedules:
    made = Schedules(q)
    made.add("nightly-report", cron("0 2 * * *"), queue="reports.nightly")
    made.add("cleanup", every("15m"), queue="maintenance", data={"task": "cleanup"})
    made.run_due()
    return made


def jobs(q: Session, name: str = "import-2026") -> str:
    """A job with ten children, of which five succeeded and one failed; returns its id."""
    made = Jobs(q)

    def split(job: RunningJob) -> bool:
        for part in range(9):
            job.create_delayed(f"part {part}", lambda t, child: t.push("parts", {"job": child.id}))
        return True

    made.run_unique(f"owner of {name}", name, split)
    root = next(one.id for one in made.roots() if one.name == name)
    results: list[Callable[[RunningJob], bool]] = [lambda _: True] * 4 + [lambda _: False]
    for child, work in zip(made.children(root)[1:], results, strict=False):
        made.run_delayed(child.id, work)
    return root


def pipeline(q: Session, clock: VirtualClock) -> None:
    """A pipeline at work: one client is finished, and one waits for the end of a worker."""
    shop = Pipeline("coffee", [Table("sales", ["id"]), Table("stores", ["id"])], (), ())
    announce_clients(q, shop, ["north", "south"])
    forwarder = EofForwarder(q, shop, 4)
    for client, table, workers, blocks in (
        ("north", "sales", 1, 40), ("north", "stores", 1, 2), ("south", "sales", 2, 31),
    ):  # fmt: skip
        key, handled = TableKey(table, client), Handled()
        for place in range(blocks):
            handled.add(0, f"{table}.csv", 65_536 + place)
        handled.rows = 1_000 * blocks
        t = q.transaction()
        t.put(forwarder.handled_key(key), msgspec.to_builtins(handled))
        t.commit()
        end = EndOfTable(client, table, 0, workers, blocks, {f"{table}.csv": blocks})
        q.push(shop.inbox, Item(data=end.files, headers=end.text()), partition=client)
        (message,) = q.pop(shop.inbox, group="router", consumer="spark", lease_seconds=3_600)
        held = HeldEof(end, message.id, message.token or "", message.sequence)
        forwarder.receive([(held, False)])
    t = q.transaction()
    t.put(shop.state_key("done", "north"), True)
    t.commit()
    record_recovery(q, shop, "spark", 6.4, 2)
    clock.advance(90)
    q.push(shop.inbox, [b"id\n1\n"] * 5, partition="south")


def _failures(q: Session) -> None:
    for n in range(9):
        q.push("payments", {"payment": n, "amount": 12.5 * n})
    q.group("payments", "worker", retry_limit=1)
    for n in range(9):
        message = q.pop("payments", group="worker", consumer="payer-1")[0]
        message.nack(ERRORS[n % 3].format(n=1000 + n))
    for n in range(3):
        q.push("payments", {"payment": 100 + n})
        q.pop("payments", group="worker", consumer="payer-2")[0].reject("amount is negative")


def main(path: str) -> None:
    """Write a seeded database to a file."""
    import time

    clock = VirtualClock(time.time() - 4_260)
    with ackflow.connect(path, clock=clock, upkeep=False) as q:
        seed(q, clock)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
