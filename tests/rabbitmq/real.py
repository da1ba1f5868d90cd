"""A real RabbitMQ for tests: on private ports, with its data in a temporary directory."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pika
from pika.exceptions import AMQPError

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 120


def found() -> bool:
    return SERVER.exists() and shutil.which("epmd") is not None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RabbitMQ:
    """`erlang`: options of its virtual machine; a test needs one scheduler only."""

    def __init__(self, folder: Path, erlang: str = "+S 1:1") -> None:
        self.port = free_port()
        for name in ("home", "log", "mnesia"):
            (folder / name).mkdir()
        (folder / "plugins").write_text("[].")
        epmd = str(free_port())
        self._env = env = {
            **os.environ,
            "HOME": str(folder / "home"),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "ERL_EPMD_PORT": epmd,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_INETRC": "",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{erlang} -kernel inet_dist_use_interface {{127,0,0,1}}"
            ),
        }
        self._log = folder / "out.log"
        out = self._log.open("wb")
        # Without its own epmd, the server would start one that stays behind.
        self._epmd = subprocess.Popen(["epmd", "-port", epmd], env=env, stdout=out, stderr=out)
        out.close()
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as out:
            self._server = subprocess.Popen(
                [str(SERVER)], env=self._env, stdout=out, stderr=out, start_new_session=True
            )
        self._wait()

    def restart(self) -> None:
        """Kill it and start it again on the same data."""
        self._kill()
        self._start()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port)).close()
                return
            except AMQPError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError(self._log.read_text()) from None
                time.sleep(0.2)

    def _kill(self) -> None:
        if self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        self._kill()
        self._epmd.kill()
        self._epmd.wait()
