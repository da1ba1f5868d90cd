"""`ackflow token`: who may use a server, and for what."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..broker import tokens
from ..broker.broker import Broker
from ..broker.tokens import Token
from ..errors import InvalidArgument
from ..model import when
from ..session import connect

app = typer.Typer(no_args_is_help=True, help="Who may use a server, and for what.")

Db = Annotated[
    str | None, typer.Option(help="Database file (default: in the user's data directory).")
]
Name = Annotated[str, typer.Argument(help="What the token is called in lists and logs.")]
DAY = 86_400.0


@contextmanager
def _broker(db: str | None) -> Iterator[Broker]:
    from ..server.place import data_file

    with connect(db or data_file(), upkeep=False) as session:
        if not isinstance(session.broker, Broker):
            raise InvalidArgument("tokens are made where the database is: give its file with --db")
        yield session.broker


@app.command()
def create(
    name: Name,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="ROLE or ROLE:PATTERN, such as read-write:orders.*; may be given several times. "
            "Roles: read-only, read-write, admin (default: read-write)."
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(help="It ends after so many days.")] = None,
    db: Db = None,
) -> None:
    """Make a token and show it; it cannot be shown again."""
    grants = [tokens.grant(text) for text in grant or ["read-write"]]
    seconds = None if days is None else days * DAY
    with _broker(db) as broker:
        print(broker.do(tokens.create, True, name, grants, seconds))


@app.command("list")
def show(db: Db = None) -> None:
    """Show the tokens there are, never what they are."""
    from rich.console import Console
    from rich.table import Table

    with _broker(db) as broker:
        known, now = broker.look(tokens.tokens), broker.clock.now()
    table = Table("name", "grants", "made", "state")
    for token in known:
        grants = ", ".join(f"{grant.role}:{grant.pattern}" for grant in token.grants)
        table.add_row(token.name, grants, f"{when(token.created_at):%Y-%m-%d}", _state(token, now))
    Console().print(table)


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return f"revoked {when(token.revoked_at):%Y-%m-%d}"
    if token.expires_at is None:
        return "good"
    verb = "ended" if token.expires_at <= now else "good until"
    return f"{verb} {when(token.expires_at):%Y-%m-%d %H:%M}"


@app.command()
def revoke(name: Name, db: Db = None) -> None:
    """End a token; a running server refuses it within a second."""
    with _broker(db) as broker:
        broker.do(tokens.revoke, True, name)


@app.command()
def disable(db: Db = None) -> None:
    """Remove all tokens, so that a server on this machine asks for none."""
    with _broker(db) as broker:
        print(f"{broker.do(tokens.forget_all, True)} tokens are removed")
