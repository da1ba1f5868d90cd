"""The four answers computed another way: plain Python over the same CSV files, row by row."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

Records = list[dict[str, Any]]
TABLES = ("menu_items", "stores", "users", "transactions", "transaction_items")


def table(folder: Path, name: str) -> Iterator[dict[str, str]]:
    pattern = re.compile(rf"{name}(_\d+)?\.csv")
    for path in sorted(folder.iterdir()):
        if pattern.fullmatch(path.name):
            with path.open(newline="", encoding="utf-8") as file:
                yield from csv.DictReader(file)


def moment(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def amount(text: str) -> Decimal | None:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    # 16 digits before the point and 18 behind it; what does not fit cannot be read.
    fits = abs(value) < 10**16 and value == round(Fraction(value), 18)
    return value if fits else None


def money(value: Decimal) -> float:
    return float(value.quantize(Decimal("0.01"), ROUND_HALF_UP))


def user(text: str) -> str:
    return re.sub(r"\.0+$", "", text.strip())


def answers(folder: Path) -> dict[str, Records]:
    names = {row["item_id"]: row["item_name"] for row in table(folder, "menu_items")}
    stores = {row["store_id"]: row["store_name"] for row in table(folder, "stores")}
    births = {user(row["user_id"]): row["birthdate"] for row in table(folder, "users")}
    large: Records = []
    turnover: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    visits: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in table(folder, "transactions"):
        at, final = moment(row["created_at"]), amount(row["final_amount"])
        if at is None or at.year not in (2024, 2025):
            continue
        who, store = user(row["user_id"]), row["store_id"]
        if who:
            visits[store][who] += 1
        if not 6 <= at.hour <= 23:
            continue
        if store in stores:
            half = "S1" if at.month <= 6 else "S2"
            turnover[stores[store], f"{at.year}-{half}"] += final or 0
        if final is not None and final >= 75:
            large.append({"transaction_id": row["transaction_id"], "final_amount": money(final)})
    return {
        "query1": sorted(large, key=lambda row: row["transaction_id"]),
        "query2": best_sold(folder, names),
        "query3": [
            {"store_name": name, "period": period, "amount": money(total)}
            for (name, period), total in sorted(turnover.items())
        ],
        "query4": best_customers(visits, stores, births),
    }


def best_sold(folder: Path, names: dict[str, str]) -> Records:
    quantity: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    revenue: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for row in table(folder, "transaction_items"):
        at = moment(row["created_at"])
        if at is None or at.year not in (2024, 2025) or row["item_id"] not in names:
            continue
        month, name = f"{at:%Y-%m}", names[row["item_id"]]
        quantity[month][name] += amount(row["quantity"]) or 0
        revenue[month][name] += amount(row["subtotal"]) or 0
    found: Records = []
    for month in sorted(quantity):
        name, most = min(quantity[month].items(), key=lambda item: (-item[1], item[0]))
        found.append({"month": month, "name": name, "quantity": int(most)})
        name, most = min(revenue[month].items(), key=lambda item: (-item[1], item[0]))
        found.append({"month": month, "name": name, "revenue": money(most)})
    return found


def best_customers(
    visits: dict[str, dict[str, int]], stores: dict[str, str], births: dict[str, str]
) -> Records:
    found: Records = []
    for store in sorted((s for s in visits if s in stores), key=lambda s: (stores[s], s)):
        ranked = sorted(visits[store].items(), key=lambda item: (-item[1], int(item[0])))
        for who, count in ranked[:3]:
            found.append(
                {"store_name": stores[store], "birthdate": births.get(who, ""),
                 "purchase_count": count}
            )  # fmt: skip
    return found
