"""Peers that are server programs: started on a private port, stopped by process id."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


@contextmanager
def started(command: list[str], port: int, cwd: Path) -> Iterator[None]:
    """Run a program during the block, which starts when its port accepts connections."""
    with open(cwd / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_for(port, process, cwd / "log")
            yield
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.02)


def redis_missing() -> str | None:
    """Return what is missing for Redis and how to install it; None if nothing is."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed (apt-get install redis-server)"
    if find_spec("redis") is None:
        return "the Python client of Redis is not installed (pip install redis)"
    return None


def spark_missing() -> str | None:
    """Return what is missing for Spark and how to install it; None if nothing is."""
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            return f"{package} is not installed (pip install ackflow[spark])"
    from ackflow.spark.spark_session import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as missing:
        return str(missing)
    return None


@contextmanager
def redis(path: Path) -> Iterator[int]:
    """Run Redis with fsync before each reply; yields its port."""
    port, data = free_port(), path / "redis"
    data.mkdir()
    command = ["redis-server", "--bind", HOST, "--port", str(port), "--dir", str(data)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with started(command, port, data):
        yield port


@contextmanager
def ackflow_server(path: Path) -> Iterator[int]:
    """Run the server on a new database, with a route that responds without the store."""
    port, data = free_port(), path / "ackflow"
    data.mkdir()
    command = [sys.executable, "-m", "bench.serve", str(data / "ackflow.db"), str(port)]
    with started(command, port, data):
        yield port
