"""The documentation builds as a site, and its pages load nothing from other hosts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import ROOT

LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning as an error."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = LOADED.search(page.read_text(encoding="utf-8"))
        assert loaded is None, f"{page}: {loaded[0]}"


def test_the_reference_shows_signatures_and_docstrings(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert 'id="ackflow.Session.push"' in page
    assert 'id="ackflow.Session.why"' in page
