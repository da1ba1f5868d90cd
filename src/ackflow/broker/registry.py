"""Every verb of the broker that can be called over HTTP, by name.

Verbs register themselves when their module is imported (see `verb`); this imports all modules that
define some. A dialect's verbs are there once the dialect is imported.
"""

from . import presence
from .core import ack_and_pop, dead_letters, leases, settle, stage, transactions
from .core.admin import admin
from .core.by_hand import settling
from .core.routing import imports
from .core.upkeep import sweeps
from .readers import commit, verbs
from .sharded import transfer
from .verb import BY_FUNCTION, VERBS, Role, Verb
from .views import browse, peek, stats, why

__all__ = ["BY_FUNCTION", "VERBS", "Role", "Verb"]
_DEFINED_IN = (
    ack_and_pop, admin, browse, settling, commit, dead_letters, imports, leases, peek, presence, settle, stage,
    stats, sweeps, transactions, transfer, verbs, why,
)  # fmt: skip
