"""Generates data for the coffee shop, with edge cases; equal seeds give equal data."""

import csv
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from ackflow.pipeline import example, load
from ackflow.pipeline.preflight import make_folder

pipeline = load(example("coffee_shop"))

ITEMS = [("Espresso", 6), ("Americano", 7), ("Latte", 8), ("Cappuccino", 8), ("Flat White", 9),
         ("Mocha", 9), ("Hot Chocolate", 9), ("Matcha Latte", 10)]  # fmt: skip
STORES = [f"G Coffee @ {place}" for place in
          ("Harbour", "Station", "Old Town", "Park", "Campus", "Airport", "Market", "Bridge",
           "Museum", "Hill")]  # fmt: skip
MONTHS = [(year, month) for year in (2024, 2025) for month in range(1, 13)][:18]


def generate(out: Path, transactions: int, clients: int, seed: int) -> None:
    """Write `out/<client>/<table>*.csv` for every client."""
    for number in range(1, clients + 1):
        rng = random.Random(f"{seed}/{number}")
        _client(out / f"client{number}", transactions, rng)


def _client(folder: Path, transactions: int, rng: random.Random) -> None:
    make_folder(folder)
    users = max(5, transactions // 20)
    _write(folder / "menu_items.csv", "menu_items", (
        [str(i), name, "coffee" if i < 6 else "non-coffee", f"{price}.0", "False", "", ""]
        for i, (name, price) in enumerate(ITEMS, 1)))  # fmt: skip
    _write(folder / "stores.csv", "stores", (
        [str(i), name, f"{i} Main Street", f"{10000 + i}", "Town", "State", "0.0", "0.0"]
        for i, name in enumerate(STORES, 1)))  # fmt: skip
    half = users // 2
    for name, some in (("202401", range(1, half + 1)), ("202402", range(half + 1, users + 1))):
        _write(folder / f"users_{name}.csv", "users", (
            [str(user), rng.choice("MF"), _day(rng), "2023-07-01 08:00:00"] for user in some))  # fmt: skip
    share = -(-transactions // len(MONTHS))
    left = transactions
    for year, month in MONTHS:
        n = min(share, left)
        left -= n
        rows, items = _month(rng, year, month, n, users)
        if (year, month) == (2024, 1):
            extra = _edge_rows(rng)
            rows, items = rows + extra[0], items + extra[1]
        _write(folder / f"transactions_{year}{month:02d}.csv", "transactions", rows)
        _write(folder / f"transaction_items_{year}{month:02d}.csv", "transaction_items", items)
    # An empty last file: the table must still end.
    _write(folder / "transactions_202507.csv", "transactions", [])


def _month(
    rng: random.Random, year: int, month: int, n: int, users: int
) -> tuple[list[list[str]], list[list[str]]]:
    rows, items = [], []
    for _ in range(n):
        id = str(UUID(int=rng.getrandbits(128)))
        at = f"{year}-{month:02d}-{rng.randrange(1, 29):02d} {rng.choice(_HOURS):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
        total = 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            item = rng.randrange(len(ITEMS))
            quantity, price = rng.choice((1, 1, 2, 3, 4)), ITEMS[item][1]
            total += quantity * price
            items.append(
                [id, str(item + 1), str(quantity), f"{price}.0", f"{quantity * price}.0", at]
            )
        user = rng.choice(
            ("", str(rng.randrange(1, users + 1)), f"{rng.randrange(1, users + 1)}.0")
        )
        off = rng.choice((0, 0, 0, 125, 50)) / 100
        rows.append([id, str(rng.randrange(1, len(STORES) + 1)), "1", "", user, f"{total}.0",
                     f"{off}", f"{total - off:.2f}", at])  # fmt: skip
    return rows, items


_HOURS = [*range(6, 24), 7, 8, 9, 12, 13, 3]


def _edge_rows(rng: random.Random) -> tuple[list[list[str]], list[list[str]]]:
    """Return rows at, below and above every limit."""
    rows, items = [], []

    def sale(at: str, amount: str, store: str = "1", user: str = "1", item: str = "1",
             quantity: str = "1", subtotal: str = "6.0") -> None:  # fmt: skip
        id = str(UUID(int=rng.getrandbits(128)))
        rows.append([id, store, "1", "", user, amount, "0", amount, at])
        items.append([id, item, quantity, "6.0", subtotal, at])

    for at in ("2024-01-05 05:59:59", "2024-01-05 06:00:00", "2024-01-05 23:59:59",
               "2024-01-05 00:00:00", "2023-12-31 23:59:59", "2024-01-01 00:00:00",
               "2025-12-31 23:59:59", "2026-01-01 00:00:00", "2024-06-30 12:00:00",
               "2024-07-01 12:00:00"):  # fmt: skip
        sale(at, "80.00")
    for amount in (
        "74.99",
        "75.00",
        "75",
        "75.005",
        "",
        "not a number",
        "1e2",
        "74.9999999",
        "0.0049999",
        "1000000000000",
        "75.0000000000000000001",
    ):
        sale("2024-01-06 10:00:00", amount)
    for at in ("", "2024-13-01 10:00:00", "yesterday"):
        sale(at, "90.00")
    sale("2024-01-07 10:00:00", "10.00", store="99")
    sale("2024-01-07 10:00:00", "10.00", item="99")
    sale("2024-01-07 10:00:00", "10.00", user="")
    sale("2024-01-07 10:00:00", "10.00", user="999999")
    sale("2024-01-07 10:00:00", "10.00", quantity="", subtotal="")
    sale("2024-01-07 10:00:00", "10.00", quantity="many", subtotal="much")
    sale("2024-01-07 10:00:00", "10.00", quantity="0.0000001", subtotal="0.0049999")
    for _ in range(40):
        sale("2024-01-08 10:00:00", "10.00", user="2.0")
        sale("2024-01-08 10:00:00", "10.00", user="3")
    return rows, items


def _day(rng: random.Random) -> str:
    return (datetime(1960, 1, 1) + timedelta(days=rng.randrange(16_000))).strftime("%Y-%m-%d")


def _write(path: Path, table: str, rows: Iterable[Sequence[str]]) -> None:
    declared = pipeline.table(table)
    assert declared is not None
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(declared.columns)
        writer.writerows(rows)
