"""The public types under mypy --strict and pyright: a user's program passes, its mistakes do not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SRC

pytestmark = pytest.mark.outer
TYPED = Path(__file__).parent / "typed"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SRC), "MYPYPATH": str(SRC)}
EXPECTED = [
    number
    for number, line in enumerate((TYPED / "bad.py").read_text().splitlines(), 1)
    if line.endswith("# error")
]


def mypy(*options: str) -> dict[str, set[int]]:
    """The lines with errors, by file."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", *options,
         str(TYPED / "good.py"), str(TYPED / "bad.py")],
        cwd=TYPED, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found: dict[str, set[int]] = {}
    for name, line in re.findall(r"(\w+\.py):(\d+): error", done.stdout):
        found.setdefault(name, set()).add(int(line))
    assert done.returncode == 1, done.stdout + done.stderr
    return found


def test_mypy_accepts_a_program_and_finds_its_mistakes() -> None:
    found = mypy(f"--cache-dir={os.devnull}", "--follow-imports=silent")
    assert found == {"bad.py": set(EXPECTED)}


def test_pyright_accepts_a_program_and_finds_its_mistakes(tmp_path: Path) -> None:
    shutil.copytree(TYPED, tmp_path / "typed")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps({"include": ["typed"], "extraPaths": [str(SRC)], "typeCheckingMode": "strict"})
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(config),
         "--pythonpath", sys.executable],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found: dict[str, set[int]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found.setdefault(Path(one["file"]).name, set()).add(line)
    assert found == {"bad.py": set(EXPECTED)}, done.stdout
