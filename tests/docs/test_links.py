"""Links between pages, and the README of the package page."""

import importlib.util
import re
from pathlib import Path

import pytest

from .blocks import DOCS, ROOT

PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_links_to_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


def test_the_readme_of_a_package_page_has_no_relative_links() -> None:
    found = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not module.LINK.search(module.package_readme(readme, None))
    absolute = module.package_readme(readme, "https://example.org/ackflow")
    assert "(https://example.org/ackflow/blob/main/docs/client.md)" in absolute
    assert "(https://example.org/ackflow/raw/main/docs/timeline.svg)" in absolute
