"""Liveness and readiness probes."""

from ..broker.views import stats
from .http import Call, Response, Route, json


async def livez(_: Call) -> Response:
    """Succeed while the process runs."""
    return json({"status": "ok"})


async def readyz(call: Call) -> Response:
    """Succeed if the database can be read."""
    await call.server.probe(stats.ready)
    return json({"status": "ok"})


ROUTES = (
    Route("GET", "/livez", livez, "open", tag="operations", summary="Liveness probe"),
    Route("GET", "/readyz", readyz, "open", tag="operations", summary="Readiness probe"),
)
