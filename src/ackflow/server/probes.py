"""Whether the server lives and can take work."""

from ..broker.views import stats
from .http import Answer, Call, Route, json


async def livez(_: Call) -> Answer:
    return json({"status": "ok"})


async def readyz(call: Call) -> Answer:
    """Ready when the database answers."""
    await call.server.onloop.look(stats.ready)
    return json({"status": "ok"})


ROUTES = (
    Route("GET", "/livez", livez, "open", tag="operations", summary="The process lives"),
    Route("GET", "/readyz", readyz, "open", tag="operations", summary="The database answers"),
)
