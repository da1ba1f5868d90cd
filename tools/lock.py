"""Writes requirements.lock: every package of `make setup` with the hash of the file that pip chose.

The versions come from constraints.txt. Hashes that are known for a version stay, so that running it
on another platform adds the hashes of that platform.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
HEAD = """\
# The files that `make setup` installs, with their hashes; `make lock` writes it. Made on CPython 3.11,
# Linux, x86_64; on other platforms `make setup` installs the versions of constraints.txt.
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read(text: str) -> dict[tuple[str, str], set[str]]:
    """The hashes by name and version."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)(.*)", entry):
            hashes = re.findall(r"--hash=(sha256:[0-9a-f]{64})", match[3])
            found[normal(match[1]), match[2]] = set(hashes)
    return found


def resolve() -> dict[tuple[str, str], set[str]]:
    """What pip would install, and the hash of each file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
            "-c", "constraints.txt", "--report", str(report), "-e", ".[all,dev]",
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True)
        chosen = json.loads(report.read_text())["install"]
    found = {}
    for one in chosen:
        name, info = normal(one["metadata"]["name"]), one["download_info"]
        if name != "ackflow":
            sha = info["archive_info"]["hashes"]["sha256"]
            found[name, one["metadata"]["version"]] = {f"sha256:{sha}"}
    return found


def main() -> None:
    known = read(LOCK.read_text()) if LOCK.exists() else {}
    lines = [HEAD]
    for (name, version), hashes in sorted(resolve().items()):
        every = sorted(hashes | known.get((name, version), set()))
        lines.append(
            f"{name}=={version}" + "".join(f" \\\n    --hash={one}" for one in every) + "\n"
        )
    LOCK.write_text("".join(lines))


if __name__ == "__main__":
    main()
