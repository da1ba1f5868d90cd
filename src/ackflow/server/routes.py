"""All routes of the server: its own and those of the dialects."""

from ..dialects.pushpop.http import ROUTES as PUSHPOP
from ..dialects.queen.http.admin_routes import ROUTES as QUEEN_ADMIN
from ..dialects.queen.http.routes import ROUTES as QUEEN
from .console.routes import ROUTES as CONSOLE
from .console.ui import ROUTES as UI
from .console.ui import UiSettings
from .http import Route
from .metrics import ROUTES as METRICS
from .native import ROUTES as NATIVE
from .openapi import ROUTES as OPENAPI
from .probes import ROUTES as PROBES


def all_routes(several: bool = False, ui: UiSettings | None = None) -> list[Route]:
    """The routes of a server of one database, or of `several`: those name rows by numbers that
    each database gives anew, which the Queen dialect does not expect."""
    queen = [] if several else [*QUEEN, *QUEEN_ADMIN]
    return [
        *NATIVE,
        *METRICS,
        *OPENAPI,
        *PROBES,
        *_dashboard(ui or UiSettings()),
        *PUSHPOP,
        *queen,
    ]


def _dashboard(ui: UiSettings) -> list[Route]:
    """The routes of the dashboard, also under its prefix, if it has one."""
    board = [*UI, *CONSOLE] if ui.enabled else [*CONSOLE]
    prefix = ui.prefix.strip("/")
    if prefix and ui.enabled:
        board += [route._replace(path=f"/{prefix}{route.path}") for route in board]
    return board
