"""The dashboard's tokens and audit."""

from ...broker import access_tokens, audit
from ...broker.audit import AuditEntry
from ...model import when
from ..http import Call, Param, Response, json
from .responses import (
    LIMIT,
    NUMBER,
    TokenRow,
    look,
    optional,
    page_limit,
    read_route,
)


async def tokens(call: Call) -> Response:
    """All tokens, without their secrets."""
    found = await look(call, access_tokens.tokens)
    return json([_token_row(token) for token in found])


def _token_row(token: access_tokens.Token) -> TokenRow:
    grants = [(grant.role, grant.pattern) for grant in token.grants]
    times = (token.created_at, token.expires_at, token.revoked_at)
    return TokenRow(token.name, grants, *(None if at is None else when(at) for at in times))  # type: ignore[arg-type]


async def audits(call: Call) -> Response:
    """Changes with their author, time and address, newest first."""
    before = call.integer("before", 0, 0, 1 << 60) if optional(call, "before") else None
    return json(await look(call, audit.entries, before, page_limit(call)))


ROUTES = (
    read_route("/v1/tokens", tokens, "List tokens", list[TokenRow], role="admin"),
    read_route("/v1/audit", audits, "List changes", list[AuditEntry], LIMIT,
         Param("before", NUMBER, "The id of the last row of the previous page"), role="admin"),
)  # fmt: skip
