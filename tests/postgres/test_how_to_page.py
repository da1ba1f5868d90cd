"""The how-to page on PostgreSQL: every block runs and prints what the page shows."""

from ..docs.blocks import DOCS, blocks, run_python, shown


def test_the_blocks_of_the_page_print_what_it_shows(postgres_url: str) -> None:
    names: dict[str, object] = {}
    for place, _, code, output in blocks(DOCS / "how-to" / "postgresql.md"):
        assert "postgresql://me@db.example/shop" in code
        code = code.replace("postgresql://me@db.example/shop", postgres_url)
        printed = run_python(code, names, place)
        assert output is not None
        assert shown(printed, output), f"{place} printed:\n{printed}"
