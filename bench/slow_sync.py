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
    wanted = str(round(milliseconds * 1000))
    if os.environ.get(MICROSECONDS) == wanted:
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("--sync-ms needs a C compiler (apt-get install gcc)")
    library = Path(tempfile.mkdtemp(prefix="bench-sync-")) / "slow_sync.so"
    library.parent.chmod(0o755)  # a server of another user loads it too
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    environment = {**os.environ, MICROSECONDS: wanted, "LD_PRELOAD": str(library)}
    arguments = [sys.executable, "-m", "bench", *sys.argv[1:]]
    os.execve(sys.executable, arguments, environment)
