"""Queen's administrative routes: options, groups, dead letters, messages, status, streams."""

from ....server.http import Route
from .configure import ROUTES as CONFIGURE
from .dead_letters import ROUTES as DLQ
from .groups import ROUTES as GROUPS
from .messages import ROUTES as MESSAGES
from .resources import ROUTES as RESOURCES
from .status import ROUTES as STATUS
from .streams import ROUTES as STREAMS
from .traces import ROUTES as TRACES

ROUTES: tuple[Route, ...] = (
    *CONFIGURE,
    *DLQ,
    *GROUPS,
    *RESOURCES,
    *MESSAGES,
    *TRACES,
    *STATUS,
    *STREAMS,
)
