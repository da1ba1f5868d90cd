"""Authentication: bearer tokens, each with a role per queue pattern.

The server requires a token as soon as the database has one. It reads the tokens again within a
second of a change by any process.
"""

import time
from hmac import compare_digest

from ..broker import access_tokens
from ..broker.access_tokens import Token
from ..broker.broker import Broker
from ..errors import AckflowError, Forbidden, Unauthenticated
from .http import Call, Role, Route

RELOAD_SECONDS = 1.0
REQUIRED = "Authentication required"


class Auth:
    """A cached copy of the tokens of a database, and the checks against them."""

    def __init__(self, broker: Broker, required: bool = False) -> None:
        self._broker = broker
        self._required = required
        self._by_digest: dict[bytes, Token] = {}
        self._token_required = required
        self._revision = -1
        self._reload_at = 0.0

    def token_required(self) -> bool:
        """Whether callers must send a token."""
        if time.monotonic() >= self._reload_at:
            self._reload()
        return self._token_required

    def has_tokens(self) -> bool:
        """Whether the database has any token."""
        self._reload()
        return bool(self._by_digest)

    def authorize(self, call: Call, route: Route) -> None:
        """Authenticate the caller and raise unless its token allows the route.

        If the path names no queue, a token for some queues is allowed only where the handler
        checks the queues itself.
        """
        if route.role == "open" or not self.token_required():
            return
        call.who = who = self._authenticate(call.header(b"authorization"))
        call.role = route.role
        queue = call.params.get(route.queue)
        if queue is not None:
            self.allow(call, queue)
        elif not route.checks_queues:
            self.allow_all(call)
        elif not who.may_somewhere(route.role):
            raise _forbidden(route.role)

    def allow(self, call: Call, queue: str) -> None:
        if call.who is not None and not call.who.may(call.role, queue):
            raise _forbidden(call.role, queue)

    def allow_all(self, call: Call) -> None:
        if call.who is not None and not call.who.may_everywhere(call.role):
            raise _forbidden(call.role, access_tokens.EVERY_QUEUE)

    def may_see(self, call: Call, queue: str) -> bool:
        return call.who is None or call.who.may(call.role, queue)

    def require(self, call: Call, role: Role) -> None:
        if call.who is not None:
            call.role = role
            if not call.who.may_somewhere(role):
                raise _forbidden(role)

    def _authenticate(self, header: str) -> Token:
        scheme, _, given = header.partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Unauthenticated(REQUIRED, hint="send the header Authorization: Bearer <token>")
        digest = access_tokens.digest(given.strip())
        found = self._by_digest.get(digest)
        if found is None or not compare_digest(found.digest, digest):
            raise Unauthenticated(REQUIRED, hint="the token is unknown", error="invalid_token")
        if not found.live(self._broker.clock.now()):
            raise Unauthenticated(
                REQUIRED, hint="the token has expired or was revoked", error="invalid_token"
            )
        return found

    def _reload(self) -> None:
        """Read the tokens again if they have changed."""
        self._reload_at = time.monotonic() + RELOAD_SECONDS
        revision = self._broker.look(access_tokens.revision)
        if revision == self._revision:
            return
        known = self._broker.look(access_tokens.tokens)
        self._by_digest = {token.digest: token for token in known}
        self._token_required = self._required or bool(known)
        self._revision = revision


def _forbidden(role: str, queue: str | None = None) -> Forbidden:
    """The missing grant: the role on a queue, on every queue (`*`), or on any queue (None)."""
    where = {} if queue is None else {"queue": queue}
    return Forbidden("Insufficient permissions", role=role, **where)


def challenge(error: AckflowError) -> bytes | None:
    """The WWW-Authenticate header of an error (RFC 6750)."""
    if isinstance(error, Unauthenticated):
        why = error.details.get("error")
        return b'Bearer realm="ackflow"' + (f', error="{why}"'.encode() if why else b"")
    if isinstance(error, Forbidden) and "role" in error.details:
        return b'Bearer realm="ackflow", error="insufficient_scope"'
    return None
