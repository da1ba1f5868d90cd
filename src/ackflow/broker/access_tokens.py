"""Tokens: who may do what over HTTP. Only the digest of a token is stored."""

import hashlib
import secrets
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec import Struct, field

from .. import validate
from ..clock import micros
from ..errors import InvalidArgument, NotFound
from ..store.tx import Tx

Role = Literal["read-only", "read-write", "admin"]
ROLES: tuple[Role, ...] = ("read-only", "read-write", "admin")
RANK: dict[str, int] = {role: rank for rank, role in enumerate(ROLES)}
EVERY_QUEUE = "*"
PREFIX = "ackflow_"
REVISION = "tokens"
_KEPT = 10_000


class Grant(Struct, frozen=True, array_like=True):
    """A role on the queues whose names match a pattern, as in a shell: `orders.*`."""

    role: Role
    pattern: str = EVERY_QUEUE


class Token(Struct):
    """A token as it is stored; what it is itself was shown once, when it was made."""

    id: int
    name: str
    digest: bytes
    grants: list[Grant]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def live(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def may(self, role: str, queue: str) -> bool:
        """Whether it has this role, or a higher one, on a queue."""
        known = self._known.get((role, queue))
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[role, queue] = any(
                RANK[grant.role] >= RANK[role] and fnmatchcase(queue, grant.pattern)
                for grant in self.grants
            )
        return known

    def may_somewhere(self, role: str) -> bool:
        return any(RANK[grant.role] >= RANK[role] for grant in self.grants)

    def may_everywhere(self, role: str) -> bool:
        return any(
            RANK[grant.role] >= RANK[role] and grant.pattern == EVERY_QUEUE for grant in self.grants
        )


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def grant(text: str) -> Grant:
    """A grant as it is written: `read-write:orders.*`, or a role alone for every queue."""
    role, _, pattern = text.partition(":")
    validate.one_of(role, "role", ROLES)
    return Grant(role, validate.name(pattern or EVERY_QUEUE, "queue pattern"))  # type: ignore[arg-type]


def create(tx: Tx, name: str, grants: list[Grant], seconds: float | None) -> str:
    """Make a token of that name; this is the only time it is known."""
    validate.name(name, "token name")
    if not grants:
        raise InvalidArgument("a token needs at least one grant")
    if any(token.name == name and token.revoked_at is None for token in tokens(tx)):
        raise InvalidArgument(f"there is a token {name!r} already; revoke it first")
    secret = PREFIX + secrets.token_urlsafe(32)
    until = None if seconds is None else tx.now + micros(validate.positive(seconds, "seconds"))
    packed = msgspec.json.encode(grants).decode()
    tx.insert("add_access_token", name, digest(secret), packed, tx.now, until)
    changed(tx)
    return secret


def tokens(tx: Tx) -> list[Token]:
    """All tokens ever made, revoked ones too, oldest first."""
    found = []
    for id, name, digest, grants, created, expires, revoked in tx.all("access_tokens"):
        read = msgspec.json.decode(grants, type=list[Grant])
        found.append(Token(id, name, digest, read, created, expires, revoked))
    return found


def find(tx: Tx, name: str) -> Token:
    """The token of that name that is not revoked."""
    for token in tokens(tx):
        if token.name == name and token.revoked_at is None:
            return token
    raise NotFound(f"there is no token {name!r}")


def revoke(tx: Tx, name: str) -> None:
    find(tx, name)
    tx.run("revoke_access_token", name, tx.now)
    changed(tx)


def forget_all(tx: Tx) -> int:
    """Remove every token, so that none is asked for any more."""
    dropped = len(tx.all("drop_access_tokens"))
    changed(tx)
    return dropped


def revision(tx: Tx) -> int:
    """A number that changes whenever a token does."""
    return int(tx.value("get_meta", REVISION) or 0)


def queue_of_lease(tx: Tx, token: int) -> str | None:
    """The queue a lease is of."""
    row = tx.lease_row(token)
    group = tx.group_by_id(row[2]) if row else None
    queue = tx.queue_by_id(group.queue) if group else None
    return queue.name if queue else None


def changed(tx: Tx) -> None:
    """Let those that remember tokens read them again."""
    tx.run("put_meta", REVISION, str(revision(tx) + 1))
