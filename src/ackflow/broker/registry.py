"""Every verb of the broker that can be called over HTTP, by name.

Verbs register themselves when their module is imported (see `verb`); this imports all modules that
define some. A dialect's verbs are there once the dialect is imported.
"""

from .core import admin, dead_letters, leases, settle, stage, sweeps, transactions
from .readers import commit, verbs
from .verb import BY_FUNCTION, VERBS, Role, Verb
from .views import browse, peek, stats, why

__all__ = ["BY_FUNCTION", "VERBS", "Role", "Verb"]
_DEFINED_IN = (
    admin, browse, commit, dead_letters, leases, peek, settle, stage, stats, sweeps, transactions, verbs,
    why,
)  # fmt: skip
