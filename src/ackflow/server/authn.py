"""Who is calling, and whether they may: bearer tokens with a role per queue pattern.

A token is asked for as soon as one was ever made. Tokens are read again within a second of a
change, whoever made it.
"""

import time
from hmac import compare_digest

from ..broker import access_tokens
from ..broker.access_tokens import Token
from ..broker.broker import Broker
from ..errors import AckflowError, Forbidden, Unauthenticated
from .http import Call, Role, Route

LOOK_SECONDS = 1.0
WHO = "Authentication required"


class Auth:
    """The tokens of a database as the server knows them."""

    def __init__(self, broker: Broker, required: bool = False) -> None:
        self._broker = broker
        self._required = required
        self._by_digest: dict[bytes, Token] = {}
        self._asked = required
        self._revision = -1
        self._look_again = 0.0

    def asked(self) -> bool:
        """Whether callers must show a token."""
        if time.monotonic() >= self._look_again:
            self._look()
        return self._asked

    def any(self) -> bool:
        """Whether there is a token at all."""
        self._look()
        return bool(self._by_digest)

    def admit(self, call: Call, route: Route) -> None:
        """Refuse a caller whose token does not allow this route.

        Where the path names no queue, a token for some queues only gets no further, unless the
        handler holds every queue against it itself.
        """
        if route.role == "open" or not self.asked():
            return
        call.who = who = self._who(call.header(b"authorization"))
        call.role = route.role
        queue = call.params.get(route.queue)
        if queue is not None:
            self.allow(call, queue)
        elif not route.checks:
            self.allow_all(call)
        elif not who.may_somewhere(route.role):
            raise _forbidden(route.role)

    def allow(self, call: Call, queue: str) -> None:
        if call.who is not None and not call.who.may(call.role, queue):
            raise _forbidden(call.role, queue)

    def allow_all(self, call: Call) -> None:
        if call.who is not None and not call.who.may_everywhere(call.role):
            raise _forbidden(call.role, access_tokens.EVERY_QUEUE)

    def sees(self, call: Call, queue: str) -> bool:
        return call.who is None or call.who.may(call.role, queue)

    def require(self, call: Call, role: Role) -> None:
        if call.who is not None:
            call.role = role
            if not call.who.may_somewhere(role):
                raise _forbidden(role)

    def _who(self, header: str) -> Token:
        scheme, _, given = header.partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Unauthenticated(WHO, hint="send the header Authorization: Bearer <token>")
        digest = access_tokens.digest(given.strip())
        found = self._by_digest.get(digest)
        if found is None or not compare_digest(found.digest, digest):
            raise Unauthenticated(WHO, hint="the token is not known", error="invalid_token")
        if not found.live(self._broker.clock.now()):
            raise Unauthenticated(WHO, hint="the token is no longer valid", error="invalid_token")
        return found

    def _look(self) -> None:
        """Read the tokens again when they have changed."""
        self._look_again = time.monotonic() + LOOK_SECONDS
        revision = self._broker.look(access_tokens.revision)
        if revision == self._revision:
            return
        known = self._broker.look(access_tokens.tokens)
        self._by_digest = {token.digest: token for token in known}
        self._asked = self._required or bool(known)
        self._revision = revision


def _forbidden(role: str, queue: str | None = None) -> Forbidden:
    """What the token lacks: the role on a queue, on every queue (`*`), or on any at all (None)."""
    where = {} if queue is None else {"queue": queue}
    return Forbidden("Insufficient permissions", role=role, **where)


def challenge(error: AckflowError) -> bytes | None:
    """The WWW-Authenticate header of a refusal (RFC 6750)."""
    if isinstance(error, Unauthenticated):
        why = error.details.get("error")
        return b'Bearer realm="ackflow"' + (f', error="{why}"'.encode() if why else b"")
    if isinstance(error, Forbidden) and "role" in error.details:
        return b'Bearer realm="ackflow", error="insufficient_scope"'
    return None
