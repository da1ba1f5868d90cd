"""Scenarios that run on RabbitMQ and on Ackflow; each returns a trace of what its client saw.

Names of queues begin with the name of the scenario, so that they do not disturb each other.
"""

from . import (
    alternates,
    consuming,
    corners,
    declaring,
    limits,
    publishing,
    refusals,
    routing,
    settling,
)
from .client import SCENARIOS, run

__all__ = [
    "SCENARIOS", "alternates", "consuming", "corners", "declaring", "limits", "publishing", "refusals", "routing",
    "run", "settling",
]  # fmt: skip
