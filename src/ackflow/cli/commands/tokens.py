"""`ackflow token`: create, list and revoke access tokens."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import typer

from ...broker import access_tokens
from ...broker.access_tokens import Token
from ...broker.broker import Broker
from ...broker.sharded.broker import ShardedBroker
from ...errors import InvalidArgument
from ...model import when
from .. import params
from ..command import Target, Yes, command, confirm
from ..output import Columns, plural
from ..streams import output_error

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke access tokens of a server.")

Name = Annotated[str, typer.Argument(help="Name of the token, in lists and logs.")]
DAY, MAX_DAYS = 86_400.0, 100_000


def _broker(target: Target) -> Broker | ShardedBroker:
    if target.location.remote:
        raise InvalidArgument("tokens are managed in the database itself: give its file with --db")
    broker = target.session.broker
    assert isinstance(broker, Broker | ShardedBroker)
    return broker


@command(app, creates=True, local=True, needs_reader=True)
def create(
    target: Target,
    name: Name,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="ROLE or ROLE:PATTERN, such as read-write:orders.*; may be repeated. "
            "Roles: read-only, read-write, admin (default: read-write)."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            parser=params.days, metavar="DAYS", help="Lifetime in days, or with a unit such as 12h."
        ),
    ] = None,
) -> None:
    """Create a token and print it; it cannot be shown again."""
    grants = [access_tokens.grant(text) for text in grant or ["read-write"]]
    seconds = None if days is None else _seconds(days)
    secret = _broker(target).do(access_tokens.create, True, name, grants, seconds)
    try:
        target.out.record({"name": name, "token": secret}, secret)
        sys.stdout.flush()
    except OSError as error:
        advice = (
            f"; token {name} was created but not printed; revoke it: ackflow token revoke {name}"
        )
        raise output_error(error, advice) from None


def _seconds(days: float) -> float:
    if not 0 < days <= MAX_DAYS:
        raise InvalidArgument(f"--days must be more than 0 and at most {MAX_DAYS:,}, got {days:g}")
    return days * DAY


@command(app, "list", local=True, needs_reader=True)
def show(target: Target) -> None:
    """List tokens by name, without the secrets."""
    broker = _broker(target)
    known, now = broker.look(access_tokens.tokens), broker.clock.now()
    if not known:
        target.out.say("no tokens")
        return
    target.out.table(
        Columns(("name", "grants", "created", "state"), ("created", "state", "grants")),
        _rows(known, now),
        map(_record, known),
    )


def _rows(known: Iterable[Token], now: int) -> Iterable[list[str]]:
    for token in known:
        made = f"{when(token.created_at):%Y-%m-%d}"
        yield [token.name, ", ".join(_grants(token)), made, _state(token, now)]


def _record(token: Token) -> dict[str, Any]:
    return {
        "name": token.name, "grants": _grants(token), "created_at": when(token.created_at),
        "expires_at": _time(token.expires_at), "revoked_at": _time(token.revoked_at),
    }  # fmt: skip


def _grants(token: Token) -> list[str]:
    return [f"{grant.role}:{grant.pattern}" for grant in token.grants]


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else when(micros)


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return f"revoked {when(token.revoked_at):%Y-%m-%d}"
    if token.expires_at is None:
        return "valid"
    verb = "expired" if token.expires_at <= now else "valid until"
    return f"{verb} {when(token.expires_at):%Y-%m-%d %H:%M}"


@command(app, local=True)
def revoke(target: Target, name: Name, yes: Yes = False) -> None:
    """Revoke a token permanently; running servers reject it within a second. Asks for confirmation."""
    broker = _broker(target)
    broker.look(access_tokens.find, name)
    confirm(f"Revoke token {name} permanently?", yes)
    broker.do(access_tokens.revoke, True, name)
    target.out.record({"revoked": name}, f"token {name} is revoked")


@command(app, local=True)
def disable(target: Target, yes: Yes = False) -> None:
    """Remove all tokens, so that a local server requires none. Asks for confirmation."""
    broker = _broker(target)
    there = len(broker.look(access_tokens.tokens))
    confirm(f"Remove {plural(there, 'token')}, so that a server no longer requires one?", yes)
    removed = broker.do(access_tokens.forget_all, True)
    target.out.record({"removed": removed}, f"{plural(removed, 'token')} removed")
