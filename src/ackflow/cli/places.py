"""Which database or server is meant: an option, the environment, a saved context, the default."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from .. import validate
from ..errors import AckflowError, InvalidArgument, NotFound
from ..server.data_dir import data_file


class NoDatabase(AckflowError):
    """There is no database of that name."""

    code = "no_database"


class Context(Struct, omit_defaults=True):
    """A place under a name; the token is the one the server asks for."""

    url: str
    token: str | None = None
    ca_file: str | None = None


class Contexts(Struct, omit_defaults=True):
    """The places that are saved, and the one that is meant when none is named."""

    current: str | None = None
    known: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        found = self.known.get(name)
        if found is None:
            there = ", ".join(self.known) or "none"
            raise NotFound(f"there is no context {name!r}; there are: {there}")
        return found


class Place(Struct):
    """Where to connect to, and what said so."""

    url: str
    token: str | None
    ca_file: str | None
    said_by: str

    @property
    def remote(self) -> bool:
        """Whether a server answers; else the database is opened in this process."""
        return self.url.startswith(("http://", "https://"))

    @property
    def shown(self) -> str:
        return validate.redact_url(self.url)


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
        raise InvalidArgument(f"{path} cannot be read: {error}; mend or remove it") from None


def save(contexts: Contexts) -> None:
    """Write the contexts so that only their owner can read them: they hold tokens."""
    path = contexts_file()
    new = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        new.replace(path)
    except OSError as error:
        raise AckflowError(f"{path} cannot be written: {error.strerror}") from None


def find(
    url: str | None,
    context: str | None,
    token: str | None = None,
    ca_file: str | None = None,
    db: str | None = None,
) -> Place:
    """The place that is meant; a token given by hand goes before that of a context."""
    options = {"--url": url, "--context": context, "--db": db}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgument(f"{given[0]} and {given[1]} both say where; give one of them")
    if db is not None:
        return Place(checked(db), token, ca_file, "--db")
    if url is not None:
        return Place(checked(url), token, ca_file, "--url")
    if context is None and (url := os.environ.get("ACKFLOW_URL")):
        return Place(checked(url), token, ca_file, "ACKFLOW_URL")
    saved = load()
    name = context if context is not None else saved.current
    if name is not None:
        found = saved.get(name)
        token, ca_file = token or found.token, ca_file or found.ca_file
        return Place(found.url, token, ca_file, f"context {name}")
    return Place(data_file(), token, ca_file, "the default")


def checked(url: str) -> str:
    """A URL or a path; what looks like the URL of something else is refused."""
    scheme, sign, rest = url.partition("://")
    if sign and (scheme not in ("http", "https", "postgresql", "postgres") or not rest):
        raise InvalidArgument(
            f"{validate.redact_url(url)!r} is neither the URL of a server (http, https) or of PostgreSQL "
            "(postgresql) nor a file"
        )
    if not url:
        raise InvalidArgument("the URL is empty; give a file, or the URL of a server")
    return url
