"""Creates a Spark session for a notebook or a script, and finds Java."""

import contextlib
import functools
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from ..errors import AckflowError
from .datasource import AckflowDataSource

MIN_JAVA = 17
_FIRST_JARS = (
    "spark-catalyst_", "spark-sql_", "spark-core_", "scala-library-", "spark-sql-api_",
    "spark-common-utils_", "spark-unsafe_", "hadoop-client-api-", "hadoop-client-runtime-",
    "log4j-core-", "log4j-api-", "jackson-databind-", "jackson-core-",
)  # fmt: skip

log = logging.getLogger("ackflow.spark")


class JavaMissing(AckflowError):
    """Spark needs Java 17 or later (Debian: apt install openjdk-17-jre-headless), or JAVA_HOME set to it."""

    code = "java_missing"


def session(app: str = "ackflow", master: str = "local[*]", **conf: str) -> SparkSession:
    """Return a Spark session with the format `ackflow` registered; an active one is reused.

    `conf`: Spark's settings, with underscores for dots: `spark_sql_shuffle_partitions="2"`. Names
    with a dot are taken as they are: `**{"spark.executorEnv.MY_NAME": "x"}`.
    """
    return register(start(app, master, **conf))


def start(app: str, master: str, **conf: str) -> SparkSession:
    """Return a Spark session without the format `ackflow`, which takes a Python worker to register."""
    os.environ["JAVA_HOME"] = str(find_java())
    # Python workers must use the interpreter that has Ackflow, not the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(master)
    if hasattr(socket, "AF_UNIX"):
        # Rows come from Python processes; over TCP they take longer, and more CPU.
        builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if master.startswith("local"):
        # A host name that does not resolve must not matter.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    for name, value in conf.items():
        builder = builder.config(name if "." in name else name.replace("_", "."), value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> SparkSession:
    """Register the format `ackflow` in an existing session."""
    spark.dataSource.register(AckflowDataSource)
    return spark


def use_installed_pyspark(folder: Path) -> None:
    """Let the Python workers of a local Spark import the PySpark that is installed.

    Spark puts the zip of its Python sources first on their path, and each of them would compile
    what it imports from it. Makes `folder` a SPARK_HOME without the zip, unless one is set or
    PySpark was installed without the rest of Spark.
    """
    home = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (home / "bin" / "spark-submit").is_file():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "conf", "jars", "sbin"):
            _link(folder / name, home / name)
    except OSError as error:  # such as a file system without links
        log.info("Spark's Python workers start more slowly, because of %s: %s", folder, error)
        return
    os.environ["SPARK_HOME"] = str(folder.absolute())


def first_jars() -> str:
    """Return the jars with most of the classes that Spark loads, as a class path; it may be empty.

    Spark's own path has all jars in the order of their folder, and each of 17,000 classes is looked
    for in one after the other.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    found = [path for name in _FIRST_JARS for path in sorted(jars.glob(f"{name}*.jar"))[:1]]
    return ":".join(map(str, found))


def _link(link: Path, target: Path) -> None:
    """Make a link, also if another process makes the same one."""
    with contextlib.suppress(FileNotFoundError):
        if link.is_symlink() and link.readlink() != target:  # of another installation
            link.unlink()
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)


def find_java() -> Path:
    """Return the home of an installed Java that Spark can use."""
    for home in _homes():
        if _version(home) >= MIN_JAVA:
            return home
    raise JavaMissing()


def _homes() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
    for folder in ("/usr/lib/jvm", "/opt", "/Library/Java/JavaVirtualMachines"):
        yield from sorted(path.parent.parent for path in Path(folder).glob("*/bin/java"))
        yield from sorted(Path(folder).glob("*/Contents/Home"))


@functools.cache
def _version(home: Path) -> int:
    try:
        result = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major
