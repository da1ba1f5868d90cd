"""`ackflow token`: who may use a server, and for what."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import typer

from ..broker import access_tokens
from ..broker.access_tokens import Token
from ..broker.broker import Broker
from ..errors import InvalidArgument
from ..model import when
from . import params
from .command import Link, Yes, command, confirm
from .output import Columns, many
from .streams import failed

app = typer.Typer(no_args_is_help=True, help="Who may use a server, and for what.")

Name = Annotated[str, typer.Argument(help="What the token is called in lists and logs.")]
DAY, MOST_DAYS = 86_400.0, 100_000


def _broker(link: Link) -> Broker:
    if link.place.remote:
        raise InvalidArgument("tokens are made where the database is: give its file with --db")
    broker = link.session.broker
    assert isinstance(broker, Broker)
    return broker


@command(app, makes=True, local=True, needs_reader=True)
def create(
    link: Link,
    name: Name,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="ROLE or ROLE:PATTERN, such as read-write:orders.*; may be given several times. "
            "Roles: read-only, read-write, admin (default: read-write)."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            parser=params.days, metavar="DAYS", help="It ends after so many days, or 12h."
        ),
    ] = None,
) -> None:
    """Make a token and show it; it cannot be shown again."""
    grants = [access_tokens.grant(text) for text in grant or ["read-write"]]
    seconds = None if days is None else _seconds(days)
    secret = _broker(link).do(access_tokens.create, True, name, grants, seconds)
    try:
        link.out.record({"name": name, "token": secret}, secret)
        sys.stdout.flush()
    except OSError as error:
        unseen = f"; the token {name} was made and could not be shown: `ackflow token revoke {name}` ends it"
        raise failed(error, unseen) from None


def _seconds(days: float) -> float:
    if not 0 < days <= MOST_DAYS:
        raise InvalidArgument(f"--days is more than 0 and at most {MOST_DAYS:,}, not {days:g}")
    return days * DAY


@command(app, "list", local=True, needs_reader=True)
def show(link: Link) -> None:
    """Show the tokens there are, never what they are."""
    broker = _broker(link)
    known, now = broker.look(access_tokens.tokens), broker.clock.now()
    if not known:
        link.out.say("there are no tokens yet")
        return
    link.out.table(
        Columns(("name", "grants", "made", "state"), ("made", "state", "grants")),
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
        return "good"
    verb = "ended" if token.expires_at <= now else "good until"
    return f"{verb} {when(token.expires_at):%Y-%m-%d %H:%M}"


@command(app, local=True)
def revoke(link: Link, name: Name, yes: Yes = False) -> None:
    """End a token for good; a running server refuses it within a second. Asks first."""
    broker = _broker(link)
    broker.look(access_tokens.find, name)
    confirm(f"Revoke the token {name} for good?", yes)
    broker.do(access_tokens.revoke, True, name)
    link.out.record({"revoked": name}, f"the token {name} is revoked")


@command(app, local=True)
def disable(link: Link, yes: Yes = False) -> None:
    """Remove all tokens, so that a server on this machine asks for none. Asks first."""
    broker = _broker(link)
    there = len(broker.look(access_tokens.tokens))
    confirm(f"Remove {many(there, 'token')}, so that a server asks for none?", yes)
    removed = broker.do(access_tokens.forget_all, True)
    link.out.record({"removed": removed}, f"{many(removed, 'token')} removed")
