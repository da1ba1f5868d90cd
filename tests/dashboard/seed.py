"""A database with a bit of everything that the dashboard shows."""

import math
from datetime import timedelta
from typing import Any

import ackflow
from ackflow import Item, Session, VirtualClock
from ackflow.broker.broker import Broker

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
    broker = q.broker
    assert isinstance(broker, Broker)
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
        broker.sampler.run_once()
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
    for stage in ("input", "rows", "partials", "answers"):
        q.push(f"coffee.{stage}", [{"stage": stage, "n": n} for n in range(6)])
        q.pop(f"coffee.{stage}", batch=2, consumer=f"{stage}-1")
    t = q.transaction()
    t.put("schedules/nightly-report", {"spec": "cron 0 2 * * * UTC", "at": clock.now()})
    t.put("jobs/root/0001", job(clock.now()))
    t.commit()
    broker.stats.take()


def job(now: int) -> dict[str, Any]:
    return {
        "id": "0001", "name": "import-2026", "status": "running", "created_at": now - 90_000_000,
        "started_at": now - 80_000_000, "last_active_at": now, "progress": 0.6,
        "counts": {"success": 5, "failed": 1, "running": 2, "new": 2},
    }  # fmt: skip


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
