"""The blocks of a documentation page, and how to run them."""

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block; `output` is the text block that follows it, if any."""

    place: str
    language: str
    code: str
    output: str | None


def blocks(page: Path) -> list[Block]:
    """The Python and shell blocks of a page, each with the output the page shows for it."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    result = []
    for index, block in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else None
        output = None
        # Only a text that directly follows a block is its output.
        if (
            following is not None
            and following[1] == "text"
            and not text[block.end() : following.start()].strip()
        ):
            output = following[2]
        line = text.count("\n", 0, block.start()) + 1
        if block[1] in ("python", "shell"):
            result.append(Block(f"{page.relative_to(ROOT)}:{line}", block[1], block[2], output))
    return result


def run_python(code: str, names: dict[str, Any], place: str) -> str:
    """Run a block and return what it printed; a block that awaits runs in an event loop."""
    printed = io.StringIO()
    compiled = compile(code, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(printed):
        if compiled.co_flags & inspect.CO_COROUTINE:

            async def main() -> None:
                await eval(compiled, names)

            asyncio.run(main())
        else:
            exec(compiled, names)
    return printed.getvalue()


def run_shell(code: str, folder: Path) -> str:
    """Run a shell block in a folder; `ackflow` is the command under test."""
    script = f'ackflow() {{ "{sys.executable}" -m ackflow "$@"; }}\nset -euo pipefail\n{code}'
    source = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=source, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(printed: str, expected: str) -> bool:
    """Whether the output is what the page shows; `…` stands for any text."""
    wanted = [line.rstrip() for line in expected.strip().splitlines()]
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    if any(line.startswith("…") for line in wanted):  # part of a table
        return all(any(matches(line, want) for line in lines) for want in wanted)
    return len(lines) == len(wanted) and all(map(matches, lines, wanted))


def matches(line: str, wanted: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), line) is not None
