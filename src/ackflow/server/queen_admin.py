"""The Queen dialect, where queues are looked after: options, groups, dead letters, messages, status."""

from .http import Route
from .queen_configure import ROUTES as CONFIGURE
from .queen_dlq import ROUTES as DLQ
from .queen_groups import ROUTES as GROUPS
from .queen_messages import ROUTES as MESSAGES
from .queen_resources import ROUTES as RESOURCES
from .queen_status import ROUTES as STATUS
from .queen_streams import ROUTES as STREAMS
from .queen_traces import ROUTES as TRACES

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
