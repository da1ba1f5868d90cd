"""A slower disk: every sync of this program, and of those that it starts, takes a least time."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_sync.c")
MICROSECONDS = "SLOW_SYNC_US"


def apply(milliseconds: float) -> None:
    """Start this program again with slower syncs; returns if it runs with them already."""
    if os.environ.get(MICROSECONDS) == _micros(milliseconds):
        return
    added = environment(milliseconds)
    if added is None:
        sys.exit("--sync-ms needs a C compiler (apt-get install gcc)")
    arguments = [sys.executable, "-m", "bench", *sys.argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **added})


def environment(milliseconds: float) -> dict[str, str] | None:
    """Return what makes the syncs of a program slower; None if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="bench-sync-")) / "slow_sync.so"
    library.parent.chmod(0o755)  # a server of another user loads it too
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    return {MICROSECONDS: _micros(milliseconds), "LD_PRELOAD": str(library)}


def _micros(milliseconds: float) -> str:
    return str(round(milliseconds * 1000))
