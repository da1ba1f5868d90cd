"""Every route of the server, dialect by dialect."""

from .http import Route
from .probes import ROUTES as PROBES


def all_routes() -> list[Route]:
    return [*PROBES]
