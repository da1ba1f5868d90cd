"""The model behind docs/scale.md: it agrees with what can be computed, and the page with it."""

from pathlib import Path

import pytest
from bench.scale_model import MEASURED, Costs, databases_for, show, simulate

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_one_client_pays_for_three_transactions_and_one_flush() -> None:
    costs = Costs(flush=2.0, commit=1.0, request=0.5, message=0.3)
    assert simulate(costs, 1, 10) == pytest.approx(10 / (2 + 3 * 1.5 + 10 * 0.3) * 1000, rel=0.01)


def test_clients_share_the_flush_until_their_own_work_is_the_limit() -> None:
    costs = Costs(flush=20.0, commit=0.1, request=0.01, message=0.001)
    few, more = simulate(costs, 1, 1), simulate(costs, 64, 1)
    assert 20 < more / few < 64
    together = 3_000 * (3 * 0.01 + 0.001) + 20 + 3 * 0.1
    assert simulate(costs, 3_000, 1) == pytest.approx(3_000 / together * 1000, rel=0.02)


def test_databases_add_up() -> None:
    one = simulate(MEASURED, 64, 100)
    assert simulate(MEASURED, 256, 100, databases=4) == pytest.approx(4 * one, rel=0.01)
    needed = databases_for(1_000_000, MEASURED, 64, 100)
    assert one * needed >= 1_000_000 > one * (needed - 1)


def test_the_page_shows_what_the_model_says() -> None:
    assert show(MEASURED) in PAGE.read_text()
