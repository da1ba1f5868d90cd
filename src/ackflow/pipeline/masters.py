"""Where Spark runs: whether the name of a master is one, and whether somebody is there."""

import re
import socket
from importlib.util import find_spec

from ..errors import InvalidArgument, Unavailable

PATIENCE = 3.0

_KNOWN = re.compile(
    r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?"
    r"|local-cluster\[\d+, *\d+, *\d+\]"
    r"|spark://[^/,\s]+:\d+(,[^/,\s]+:\d+)*"
    r"|yarn|k8s://\S+"
)


def check(master: str) -> str:
    """Refuse what no Spark could mean."""
    if not _KNOWN.fullmatch(master):
        raise InvalidArgument(
            f"a master is local[2], spark://host:port, yarn or k8s://..., not {master!r}"
        )
    return master


def local(master: str) -> bool:
    """Whether Spark runs in a process of this machine, which takes its cores from nobody."""
    return re.match(r"local(\[|$)", master) is not None


def ready(master: str) -> None:
    """Refuse to start when no master of a cluster answers, without Spark or without Java."""
    reachable(check(master))
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise InvalidArgument("a pipeline needs Spark: pip install 'ackflow[spark]'")
    from ..spark.spark_session import find_java

    find_java()


def reachable(master: str) -> None:
    """Refuse a cluster of which no master answers."""
    if master.startswith("spark://"):
        places = master.removeprefix("spark://").split(",")
        reasons = [_unreachable(place) for place in places]
        if all(reasons):
            raise Unavailable(f"no Spark master answers at {master}: {reasons[0]}")


def _unreachable(place: str) -> str | None:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
