"""Every route of the server, dialect by dialect."""

from .http import Route
from .metrics import ROUTES as METRICS
from .native import ROUTES as NATIVE
from .openapi import ROUTES as OPENAPI
from .probes import ROUTES as PROBES
from .pushpop import ROUTES as PUSHPOP
from .queen import ROUTES as QUEEN
from .queen_admin import ROUTES as QUEEN_ADMIN


def all_routes() -> list[Route]:
    return [
        *NATIVE,
        *METRICS,
        *OPENAPI,
        *PROBES,
        *PUSHPOP,
        *QUEEN,
        *QUEEN_ADMIN,
    ]
