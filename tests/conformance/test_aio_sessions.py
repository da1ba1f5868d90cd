"""Pushes, pops, waiting pops and transactions again, each call awaited in an event loop."""

import pytest
from awaited import open_session  # noqa: F401
from test_push_and_pop import *  # noqa: F403
from test_transactions import *  # noqa: F403
from test_waiting import *  # noqa: F403

pytestmark = pytest.mark.every_store
