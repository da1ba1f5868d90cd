"""A standalone cluster on loopback: executors in processes of their own, one killed in mid-task."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from ackflow.spark.spark_session import find_java

from ..server.conftest import free_port
from .test_crash import Application

pytestmark = [pytest.mark.outer, pytest.mark.timeout(600)]


class Cluster:
    """One master and two workers."""

    def __init__(self, folder: Path) -> None:
        self.port, self.web = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start("master.Master", "--host", "127.0.0.1", "--port", str(self.port),
                   "--webui-port", str(self.web))  # fmt: skip
        self.wait_for("ALIVE", 1)
        for n in range(2):
            self.start("worker.Worker", self.url, "--host", "127.0.0.1", "--cores", "1",
                       "--memory", "1g", "--webui-port", str(free_port()),
                       "--work-dir", str(folder / f"work{n}"))  # fmt: skip
        self.wait_for("worker-", 2)

    def start(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        env = {
            **os.environ, "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with (self.folder / "cluster.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen([*command, *arguments], env=env, stdout=log, stderr=log)
            )

    def wait_for(self, text: str, times: int) -> None:
        """Wait until the master's page shows a text so often."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.web}/json/", timeout=5) as page,
            ):
                if page.read().decode().count(text) >= times:
                    return
            time.sleep(0.2)
        raise AssertionError((self.folder / "cluster.log").read_text()[-3000:])

    def stop(self) -> None:
        gone = contextlib.suppress(psutil.NoSuchProcess)  # executors end while they are looked at
        for child in self.started():
            with gone:
                child.kill()
        for process in self.processes:
            process.kill()
            process.wait()

    def started(self) -> list[psutil.Process]:
        """Return what the master and the workers have started: the executors."""
        found: list[psutil.Process] = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(process.pid).children(recursive=True)
        return found


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.stop()


def test_an_executor_killed_in_mid_task_costs_nothing_and_repeats_nothing(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    application = Application(tmp_path, spark)
    try:
        code = application.run("--master", cluster.url, "--point", "executor@1")
        assert code == 0, application.log.read_text()[-3000:]
        application.check()
    finally:
        application.stop()
        application.q.close()
