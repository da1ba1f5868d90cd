"""Settling, fencing and dead letters again, each call awaited in an event loop."""

import pytest
from awaited import open_session  # noqa: F401
from test_dead_letters import *  # noqa: F403
from test_fencing import *  # noqa: F403
from test_settle import *  # noqa: F403

pytestmark = pytest.mark.outer
