"""Run commands, one per line of stdin, in a process that cannot import some packages.

`python without.py PACKAGES`; answers with one JSON list of exit code, output and traceback a line.
"""

import io
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder
from typing import Any

HIDDEN = set(sys.argv[1].split(","))


class Missing(PathFinder):
    """Finds everything but the hidden packages, as if they were not installed."""

    @classmethod
    def find_spec(cls, fullname: str, *more: Any) -> Any:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, *more)


sys.meta_path[:] = [Missing if finder is PathFinder else finder for finder in sys.meta_path]

import typer  # noqa: E402

from ackflow.cli.main import app  # noqa: E402

COMMAND = typer.main.get_command(app)  # made once: it takes longer than most commands


def run(line: str) -> tuple[object, str, str]:
    printed, code, trace = io.TextIOWrapper(io.BytesIO()), None, ""
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            COMMAND.main(line.split(), "ackflow")
        except SystemExit as end:
            code = end.code
        except BaseException:
            trace = traceback.format_exc()
    printed.flush()
    return code, printed.buffer.getvalue().decode(), trace  # type: ignore[attr-defined]


for line in sys.stdin:
    print(json.dumps(run(line)))
