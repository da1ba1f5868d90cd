"""Authentication: bearer tokens, each with a role per queue pattern.

The server requires a token as soon as the database has one. It reads the tokens again within a
second of a change by any process, in a thread of its own: the event loop never waits for the
database.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from hmac import compare_digest

from ..broker import access_tokens
from ..broker.access_tokens import Token
from ..broker.broker import Broker
from ..broker.sharded.broker import ShardedBroker
from ..errors import AckflowError, Forbidden, Unauthenticated
from .console.ui import cookie_of
from .http import Call, Role, Route

RELOAD_SECONDS = 1.0
REQUIRED = "Authentication required"


class Auth:
    """A cached copy of the tokens of a database, and the checks against them."""

    def __init__(self, broker: Broker | ShardedBroker, required: bool = False) -> None:
        self._broker = broker
        self._required = required
        self._by_digest: dict[bytes, Token] = {}
        self.token_required = required  # callers must send a token
        self.revision = -1  # of the known tokens
        self._stale_at = 0.0
        self._refreshing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ackflow-auth")

    def fresh(self) -> bool:
        """Whether the known tokens are at most a second old; if not, await `refresh` first."""
        left = self._stale_at - time.monotonic()
        if left < RELOAD_SECONDS / 2 and self._refreshing is None:
            self._refresh()
        return left > 0

    async def refresh(self) -> None:
        """Read the tokens if they have changed; callers at the same time share one read."""
        await (self._refreshing or self._refresh())

    def _refresh(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        self._refreshing = refreshing = loop.run_in_executor(self._thread, self._reload)
        refreshing.add_done_callback(self._refreshed)
        return refreshing

    def _refreshed(self, done: "asyncio.Future[None]") -> None:
        self._refreshing = None
        if not done.cancelled():
            done.exception()  # the next request gets it: until then nothing waits for this

    def has_tokens(self) -> bool:
        """Whether the database has any token; this waits for the database."""
        self._reload()
        return bool(self._by_digest)

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def authorize(self, call: Call, route: Route) -> None:
        """Authenticate the caller and raise unless its token allows the route.

        If the path names no queue, a token for some queues is allowed only where the handler
        checks the queues itself.
        """
        if route.role == "open" or not self.token_required:
            return
        who = self.authenticate(call, cookies=route.cookies)
        assert who is not None
        call.role = route.role
        queue = call.params.get(route.queue)
        if queue is not None:
            self.allow(call, queue)
        elif not route.checks_queues:
            self.allow_all(call)
        elif not who.may_somewhere(route.role):
            raise _forbidden(route.role)

    def authenticate(self, call: Call, cookies: bool = True) -> Token | None:
        """Set and return the token of a call: its own, or that of its session where these count."""
        if not self.token_required:
            return None
        header = call.header(b"authorization")
        cookie = cookie_of(call) if cookies and not header else None
        if cookie is not None:
            digest = call.server.dashboard.sessions.token(cookie)
            found = None if digest is None else self._by_digest.get(digest)
            call.who = self._check_live(found)
        else:
            call.who = self._authenticate(header)
        return call.who

    def by_secret(self, secret: str) -> Token:
        """Return the token with this secret, or raise Unauthenticated."""
        return self._authenticate(f"Bearer {secret}")

    def log_in(self, name: str, secret: str) -> Token | None:
        """Authenticate a client by the name of its token and the token; None where none is needed."""
        if not self.token_required:
            return None
        found = self._authenticate(f"Bearer {secret}")
        if found.name != name:
            raise Unauthenticated(
                REQUIRED, hint="the token has another name", error="invalid_token"
            )
        return found

    def check_again(self, who: Token | None) -> None:
        """Raise Unauthenticated unless a client that logged in before may still use the server."""
        if who is not None:
            self._check_live(self._by_digest.get(who.digest))
        elif self.token_required:
            raise Unauthenticated(REQUIRED, hint="log in again with a token")

    def authorize_again(self, call: Call) -> None:
        """Raise unless the token of a call that has waited is still valid."""
        if call.who is not None:
            self._check_live(self._by_digest.get(call.who.digest))
        elif self.token_required:
            raise Unauthenticated(REQUIRED, hint="send the header Authorization: Bearer <token>")

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
        if found is not None and not compare_digest(found.digest, digest):
            found = None
        return self._check_live(found)

    def _check_live(self, found: Token | None) -> Token:
        if found is None:
            raise Unauthenticated(REQUIRED, hint="the token is unknown", error="invalid_token")
        if not found.live(self._broker.clock.now()):
            raise Unauthenticated(
                REQUIRED, hint="the token has expired or was revoked", error="invalid_token"
            )
        return found

    def _reload(self) -> None:
        """Read the tokens again if they have changed."""
        began = time.monotonic()
        revision = self._broker.read(access_tokens.revision)
        if revision != self.revision:
            known = self._broker.read(access_tokens.tokens)
            self._by_digest = {token.digest: token for token in known}
            self.token_required = self._required or bool(known)
            self.revision = revision
        self._stale_at = began + RELOAD_SECONDS


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
