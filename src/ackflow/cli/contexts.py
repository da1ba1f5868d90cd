"""`ackflow context`, and which database or server a command uses.

An option comes first, then ACKFLOW_URL, then the context in use, then the default file.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from .. import validate
from ..errors import AckflowError, InvalidArgument, NotFound
from ..server.data_dir import data_file
from .errors import CommandRefused
from .output import Columns, Output
from .params import AsJson, wants_json

SCHEMES = ("http", "https", "postgresql", "postgres")


class Context(Struct, omit_defaults=True):
    """A saved database or server, with the access token and certificates for it."""

    url: str
    token: str | None = None
    ca_file: str | None = None


class Contexts(Struct, omit_defaults=True):
    """The saved contexts by name, and the name of the one in use."""

    current: str | None = None
    known: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        found = self.known.get(name)
        if found is None:
            known = ", ".join(self.known) or "none"
            raise NotFound(f"context {name!r} not found; saved contexts: {known}")
        return found


class Location(Struct):
    """The database or server to connect to; `source` is the option or setting that named it.

    `chosen`: it was named for this call, by an option or the environment.
    """

    url: str
    token: str | None
    ca_file: str | None
    source: str
    chosen: bool = True

    @property
    def remote(self) -> bool:
        """Whether it is a server; otherwise the database is opened in this process."""
        return self.url.startswith(("http://", "https://"))

    @property
    def redacted(self) -> str:
        return validate.redact_url(self.url)


def find(
    url: str | None,
    context: str | None,
    token: str | None = None,
    ca_file: str | None = None,
    db: str | None = None,
) -> Location:
    """Determine the database or server; a given token takes precedence over the context's."""
    options = {"--url": url, "--context": context, "--db": db}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgument(f"{given[0]} and {given[1]} exclude each other; give one of them")
    if db is not None:
        return Location(check_url(db), token, ca_file, "--db")
    if url is not None:
        return Location(check_url(url), token, ca_file, "--url")
    if context is None and (url := os.environ.get("ACKFLOW_URL")):
        return Location(check_url(url), token, ca_file, "ACKFLOW_URL")
    saved = load()
    name = context if context is not None else saved.current
    if name is not None:
        found = saved.get(name)
        token, ca_file = token or found.token, ca_file or found.ca_file
        return Location(found.url, token, ca_file, f"context {name}", context is not None)
    return Location(data_file(), token, ca_file, "the default", False)


def check_url(url: str) -> str:
    """Check a URL or file path; a URL with an unknown scheme is an error."""
    scheme, sign, rest = url.partition("://")
    if sign and (scheme not in SCHEMES or not rest):
        raise InvalidArgument(
            f"{validate.redact_url(url)!r} is not a file, a server URL (http, https) or a PostgreSQL URL "
            "(postgresql)"
        )
    if not url:
        raise InvalidArgument("the URL is empty; give a file or the URL of a server")
    return url


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "ackflow" / "contexts.json"


def load() -> Contexts:
    path = contexts_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}; repair or remove it") from None


def save(contexts: Contexts) -> None:
    """Write the contexts with permissions for their owner only: they contain tokens."""
    path = contexts_file()
    new = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        new.replace(path)
    except OSError as error:
        raise AckflowError(f"{path} cannot be written: {error.strerror}") from None


# the commands

app = typer.Typer(no_args_is_help=True, help="Save databases and servers under names.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


def register(main: typer.Typer) -> None:
    main.add_typer(app, name="context", rich_help_panel="Operation")


@app.command()
def add(
    name: Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Database file, or URL of PostgreSQL or a server.")
    ],
    token: Annotated[str | None, typer.Option(help="Access token of the server.")] = None,
    ca_file: Annotated[str | None, typer.Option(help="CA certificates to trust, PEM file.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Also make it the context in use.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing context, including its token.")
    ] = False,
) -> None:
    """Save a context."""
    saved = load()
    if not name.strip():
        raise InvalidArgument("the name of a context must not be empty")
    if not validate.is_url(check_url(url)):
        url = os.path.abspath(url)
    before = saved.known.get(name)
    new = Context(url, token, None if ca_file is None else os.path.abspath(ca_file))
    if before not in (None, new) and not force:
        has = ", with a token" if before.token else ""
        raise CommandRefused(
            f"context {name} exists: {validate.redact_url(before.url)}{has}; give --force to replace it"
        )
    saved.known[name] = new
    if use:
        saved.current = name
    save(saved)
    in_use = " and is in use" if saved.current == name else ""
    print(f"context {name} refers to {validate.redact_url(url)}{in_use}")
    if before is not None and before.token and not token:
        print("its token was removed")
    if saved.current != name:
        print(f"to make it the default: ackflow context use {name}")


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the context.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context.")] = False,
) -> None:
    """Choose the context that commands use by default."""
    if (name is None) != none:
        raise InvalidArgument("give the name of a context, or --none")
    saved = load()
    if name is not None:
        saved.get(name)
    saved.current = name
    save(saved)
    print("no context is in use" if name is None else f"context {name} is in use")


@app.command("list")
def show(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the contexts, with a star for the one in use. Tokens are not shown."""
    saved = load()
    out = Output(wants_json(ctx, as_json))
    if not saved.known:
        out.say("no contexts")
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
    """Remove a context; the database or server itself is not changed."""
    saved = load()
    saved.get(name)
    del saved.known[name]
    if saved.current == name:
        saved.current = None
    save(saved)
    print(f"context {name} is removed")
