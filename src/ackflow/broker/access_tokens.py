"""Access tokens: permissions for HTTP clients. Only the digest of a token is stored."""

import hashlib
import secrets
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec import Struct, field

from .. import validate
from ..clock import micros
from ..errors import AckflowError, InvalidArgument, NotFound
from ..store.tx import Tx
from .verb import verb

Role = Literal["read-only", "read-write", "admin"]
ROLES: tuple[Role, ...] = ("read-only", "read-write", "admin")
RANK: dict[str, int] = {role: rank for rank, role in enumerate(ROLES)}
EVERY_QUEUE = "*"
PREFIX = "ackflow_"
REVISION = "tokens"
_KEPT = 10_000


class Grant(Struct, frozen=True, array_like=True):
    """A role on the queues whose names match a shell-style pattern, such as `orders.*`."""

    role: Role
    pattern: str = EVERY_QUEUE


class Token(Struct):
    """A token as it is stored; its secret is shown only once, when it is created."""

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
        """Return whether the token grants this role, or a higher one, on a queue."""
        known = self._known.get((role, queue))
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[role, queue] = any(
                RANK[grant.role] >= RANK[role] and fnmatchcase(queue, grant.pattern)
                for grant in self.grants
            )
        return known

    @property
    def key_prefix(self) -> str:
        """A text that only tokens with the same grants have in common."""
        patterns = sorted({grant.pattern for grant in self.grants})
        return hashlib.blake2b(msgspec.json.encode(patterns), digest_size=12).hexdigest()

    def may_somewhere(self, role: str) -> bool:
        return any(RANK[grant.role] >= RANK[role] for grant in self.grants)

    def may_everywhere(self, role: str) -> bool:
        return any(
            RANK[grant.role] >= RANK[role] and grant.pattern == EVERY_QUEUE for grant in self.grants
        )


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def grant(text: str) -> Grant:
    """Parse a grant: `read-write:orders.*`, or only a role, which covers every queue."""
    role, _, pattern = text.partition(":")
    validate.one_of(role, "role", ROLES)
    return Grant(role, validate.name(pattern or EVERY_QUEUE, "queue pattern"))  # type: ignore[arg-type]


@verb("admin", name="token_create", wire=False, home=True)
def create(tx: Tx, name: str, grants: list[Grant], seconds: float | None) -> str:
    """Create a token and return its secret, which is not stored."""
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


@verb("admin", name="token_tokens", wire=False, home=True, read_only=True)
def tokens(tx: Tx) -> list[Token]:
    """Return all tokens, including revoked ones, oldest first."""
    found = []
    for id, name, digest, grants, created, expires, revoked in tx.all("access_tokens"):
        read = msgspec.json.decode(grants, type=list[Grant])
        found.append(Token(id, name, digest, read, created, expires, revoked))
    return found


@verb("admin", name="token_find", wire=False, home=True, read_only=True)
def find(tx: Tx, name: str) -> Token:
    """Return the token with this name that is not revoked, or raise NotFound."""
    for token in tokens(tx):
        if token.name == name and token.revoked_at is None:
            return token
    raise NotFound(f"there is no token {name!r}")


@verb("admin", name="token_revoke", wire=False, home=True)
def revoke(tx: Tx, name: str) -> None:
    find(tx, name)
    tx.run("revoke_access_token", name, tx.now)
    changed(tx)


@verb("admin", name="token_forget_all", wire=False, home=True)
def forget_all(tx: Tx) -> int:
    """Delete every token, so that requests no longer need one; return how many."""
    dropped = len(tx.all("drop_access_tokens"))
    changed(tx)
    return dropped


@verb("admin", name="token_revision", wire=False, home=True, read_only=True)
def revision(tx: Tx) -> int:
    """Return a number that changes whenever a token changes."""
    return int(tx.value("get_meta", REVISION) or 0)


class TokensChanged(AckflowError):
    """A token was changed; read the tokens again."""

    code = "tokens_changed"
    status = 503


def check_revision(tx: Tx, revision_known: int) -> None:
    """Raise TokensChanged if a token was changed since its revision was read."""
    if revision(tx) != revision_known:
        raise TokensChanged()


def changed(tx: Tx) -> None:
    """Increase the revision, so that caches of tokens are reloaded."""
    tx.run("put_meta", REVISION, str(revision(tx) + 1))
