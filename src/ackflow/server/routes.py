"""Every route of the server, dialect by dialect."""

from .http import Route
from .probes import ROUTES as PROBES
from .pushpop import ROUTES as PUSHPOP


def all_routes() -> list[Route]:
    return [*PROBES, *PUSHPOP]
