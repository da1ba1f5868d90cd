"""All routes of the server: its own and those of the dialects."""

from ..dialects.pushpop.http import ROUTES as PUSHPOP
from ..dialects.queen.http.admin_routes import ROUTES as QUEEN_ADMIN
from ..dialects.queen.http.routes import ROUTES as QUEEN
from .http import Route
from .metrics import ROUTES as METRICS
from .native import ROUTES as NATIVE
from .openapi import ROUTES as OPENAPI
from .probes import ROUTES as PROBES


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
