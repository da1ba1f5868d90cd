"""`ackflow context`: databases and servers under names."""

import os
from typing import Annotated

import typer

from .. import validate
from ..errors import InvalidArgument
from . import places
from .command import AsJson, Refused, remember
from .output import Columns, Output
from .places import Context

app = typer.Typer(no_args_is_help=True, help="Databases and servers under names.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


def register(main: typer.Typer) -> None:
    main.add_typer(app, name="context", rich_help_panel="Operation")


@app.command()
def add(
    name: Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Database file, or URL of PostgreSQL or a server.")
    ],
    token: Annotated[str | None, typer.Option(help="What the server asks for.")] = None,
    ca_file: Annotated[str | None, typer.Option(help="Certificates to trust, PEM.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a context of that name, its token included.")
    ] = False,
) -> None:
    """Save a context."""
    saved = places.load()
    if not name.strip():
        raise InvalidArgument("a context has a name")
    if not validate.is_url(places.checked(url)):
        url = os.path.abspath(url)
    before = saved.known.get(name)
    new = Context(url, token, None if ca_file is None else os.path.abspath(ca_file))
    if before not in (None, new) and not force:
        has = ", with a token" if before.token else ""
        raise Refused(
            f"context {name} is {validate.redact_url(before.url)}{has}; give --force to replace it"
        )
    saved.known[name] = new
    if use:
        saved.current = name
    places.save(saved)
    print(
        f"context {name} is {validate.redact_url(url)}{' and in use' if saved.current == name else ''}"
    )
    if before is not None and before.token and not token:
        print("its token was removed")
    if saved.current != name:
        print(f"`ackflow context use {name}` makes it the default")


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the context.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context from now on.")] = False,
) -> None:
    """Choose the context that is meant when nothing else is said."""
    if (name is None) != none:
        raise InvalidArgument("name a context, or give --none")
    saved = places.load()
    if name is not None:
        saved.get(name)
    saved.current = name
    places.save(saved)
    print("no context is in use" if name is None else f"context {name} is in use")


@app.command("list")
def show(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the contexts; the one in use has a star. Tokens are not shown."""
    saved = places.load()
    out = Output(remember(ctx, as_json))
    if not saved.known:
        out.say("there are no contexts yet")
        return
    out.table(
        Columns(("", "name", "url", "token"), ("token", "url")),
        (
            [
                "*" if name == saved.current else "",
                name,
                validate.redact_url(one.url),
                "yes" if one.token else "",
            ]
            for name, one in saved.known.items()
        ),
        (
            {
                "name": name,
                "url": validate.redact_url(one.url),
                "current": name == saved.current,
                "token": bool(one.token),
            }
            for name, one in saved.known.items()
        ),
    )


@app.command()
def remove(name: Name) -> None:
    """Forget a context; what it names stays."""
    saved = places.load()
    saved.get(name)
    del saved.known[name]
    if saved.current == name:
        saved.current = None
    places.save(saved)
    print(f"context {name} is removed")
