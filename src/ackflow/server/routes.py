"""Every route of the server, dialect by dialect."""

from .http import Route
from .metrics import ROUTES as METRICS
from .openapi import ROUTES as OPENAPI
from .probes import ROUTES as PROBES
from .pushpop import ROUTES as PUSHPOP


def all_routes() -> list[Route]:
    return [
        *METRICS,
        *OPENAPI,
        *PROBES,
        *PUSHPOP,
    ]
