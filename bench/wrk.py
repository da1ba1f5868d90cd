"""Load generators that are not Python: wrk for HTTP, redis-benchmark for Redis."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from .peers import HOST

SCRIPTS = Path(__file__).parent / "lua"


class Result(NamedTuple):
    """Requests per second, and the median latency in microseconds."""

    per_second: float
    p50: float
    requests: int


def missing() -> str | None:
    """Return what is missing and how to install it; None if nothing is."""
    if shutil.which("wrk") is None:
        return "wrk is not installed (apt-get install wrk)"
    return None


def redis_missing() -> str | None:
    for program, package in (("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    return None


def push(
    port: int, path: str, body: bytes, type: str, connections: int, seconds: int, folder: Path
) -> Result:
    """Send the same request again and again."""
    file = folder / "body"
    file.write_bytes(body)
    return _wrk("same", port, connections, seconds, path, type, str(file))


def pop_ack(port: int, dialect: str, queue: str, connections: int, seconds: int) -> Result:
    """Pop one message and ack it, again and again; a pair is one unit of the result."""
    return _wrk("pop_ack", port, connections, seconds, dialect, queue)


def _wrk(script: str, port: int, connections: int, seconds: int, *args: str) -> Result:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    command += ["-s", str(SCRIPTS / f"{script}.lua"), f"http://{HOST}:{port}", "--", *args]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("result "))
    requests, micros, failed, p50 = map(int, line.split()[1:])
    if failed:
        raise RuntimeError(f"{failed} of {requests} requests failed: {' '.join(command)}\n{output}")
    return Result(requests / micros * 1e6, p50, requests)


def redis(port: int, connections: int, requests: int, *command: str, keys: int = 0) -> float:
    """Return the requests per second of one command; `__rand_int__` is replaced by a number."""
    line = ["redis-benchmark", "-h", HOST, "-p", str(port), "-c", str(connections)]
    line += ["-n", str(requests), *(["-r", str(keys)] if keys else []), "--csv", *command]
    output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    head, row = (line.strip('"').split('","') for line in output.splitlines()[-2:])
    return float(row[head.index("rps") - len(head)])  # the command itself may contain quotes


def redis_fill(port: int, stream: str, entries: int, value: str) -> None:
    """Create a stream with a group `g` and entries with the ids 1-0, 1-1 and so on."""
    script = (
        "redis.call('del', KEYS[1]) redis.call('xgroup', 'create', KEYS[1], 'g', '0', 'mkstream') "
        "for i = 0, ARGV[1] - 1 do redis.call('xadd', KEYS[1], '1-' .. i, 'd', ARGV[2]) end"
    )
    command = ["redis-cli", "-h", HOST, "-p", str(port), "eval", script, "1", stream]
    subprocess.run([*command, str(entries), value], check=True, capture_output=True)
