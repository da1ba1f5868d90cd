"""What all commands share: where they work, how they fail, and how they end."""

import difflib
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from inspect import Parameter, signature
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

import msgspec
import typer
from typer.core import TyperGroup

from .. import errors, validate
from ..errors import AckflowError, InvalidArgument, NotFound, QueueNotFound, StorageAway
from ..session.connect import connect
from ..session.session import Session
from . import places
from .output import Output, safe
from .places import NoDatabase, Place
from .streams import OutputFailed, discard, failed, persistent

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., None])

FAILED, USAGE, NOTHING, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])  # Typer does not export it
_UNREACHABLE = {"unavailable", "circuit_open", StorageAway.code, NoDatabase.code}
_PANEL = "Where and how"
# Which extra brings the packages that commands import when they need them.
_EXTRAS = {
    **dict.fromkeys(("aiohttp", "greenlet", "urllib3"), "client"),
    **dict.fromkeys(("cryptography", "httptools", "prometheus_client", "uvicorn"), "server"),
    **dict.fromkeys(("psycopg", "psycopg_binary"), "postgres"),
    **dict.fromkeys(("pyspark", "pyarrow", "py4j"), "spark"),
    "pika": "rabbitmq",
}
PANELS = ("Messages", "Looking", "Dead letters", "Administration", "Operation")

Url = Annotated[
    str | None,
    typer.Option(
        help="Database file, or URL of PostgreSQL or a server (env: ACKFLOW_URL; default: the "
        "current context, else the file that `serve` uses).",
        rich_help_panel=_PANEL,
    ),
]
Named = Annotated[
    str | None,
    typer.Option("--context", help="A saved context, by name.", rich_help_panel=_PANEL),
]
Bearer = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="What the server asks for; see `ackflow token` (env: ACKFLOW_TOKEN).",
        rich_help_panel=_PANEL,
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(help="Certificates to trust, PEM (env: ACKFLOW_CA_FILE).", rich_help_panel=_PANEL),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="JSON for programs: a document, or one per line.", rich_help_panel=_PANEL
    ),
]
_SHARED: dict[str, tuple[Any, Any]] = {
    "url": (Url, None),
    "context": (Named, None),
    "bearer": (Bearer, None),
    "ca_file": (CaFile, None),
    "as_json": (AsJson, False),
}
_FILE: dict[str, tuple[Any, Any]] = {
    "db": (
        Annotated[
            str | None,
            typer.Option(help="Database file; the same as --url.", rich_help_panel=_PANEL),
        ],
        None,
    )
}
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class ExtraMissing(AckflowError):
    """A package that the command needs is not installed."""

    code = "extra_missing"


class Refused(AckflowError):
    """The command was not carried out."""

    code = "refused"


class Link:
    """The place a command works on, opened when it is first needed, and its output."""

    def __init__(self, place: Callable[[], Place], out: Output, **how: bool) -> None:
        self._place = place
        self._how = how
        self._opened: Session | None = None
        self._known: Place | None = None
        self.out = out

    @property
    def place(self) -> Place:
        if self._known is None:
            self._known = self._place()
        return self._known

    @property
    def session(self) -> Session:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Session:
        # What the broker logs is for those who run it; the command tells what it did.
        logging.getLogger("ackflow").addHandler(logging.NullHandler())
        place = self.place
        if not place.remote:
            if not self._how["makes"] and place.url != ":memory:":
                there(place)
            return connect(place.url, upkeep=self._how["keeps"])
        return connect(
            place.url,
            token=place.token,
            ca_file=place.ca_file,
            retry=None if self._how["keeps"] else _hasty(),
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def there(place: Place) -> None:
    """Refuse a file that is not there: only what brings messages makes one."""
    if not validate.is_url(place.url) and not os.path.exists(place.url):
        raise NoDatabase(
            f"there is no database {place.url} (from {place.said_by}); "
            "`ackflow push` or `ackflow serve` makes one"
        )


def _hasty() -> Any:
    """A person waits: tell soon when nobody answers."""
    from ..remote.retry import RetryPolicy

    return RetryPolicy(pauses=(0.3,), connect_seconds=3.0)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    makes: bool = False,
    keeps: bool = False,
    local: bool = False,
    needs_reader: bool = False,
    epilog: str | None = None,
) -> Callable[[Callable[Concatenate[Link, P], None]], Callable[Concatenate[Link, P], None]]:
    """Register a function of a link as a command, with the options that say where and how.

    `makes`: a file that is not there is made. `keeps`: it may run for long, so it does upkeep on
    a file and has patience with a server. `local`: it is about a file, so --db names it as well.
    `needs_reader`: it ends when its output is closed; the others finish their work.
    """
    options = {**_FILE, **_SHARED} if local else _SHARED

    def register(
        function: Callable[Concatenate[Link, P], None],
    ) -> Callable[Concatenate[Link, P], None]:
        def run(ctx: typer.Context, **given: Any) -> None:
            shared = _shared(ctx, {name: given.pop(name) for name in options})
            link = Link(lambda: _find(shared), Output(shared["as_json"]), makes=makes, keeps=keeps)
            try:
                with nullcontext() if needs_reader else persistent():
                    function(link, **given)  # type: ignore[call-arg]
            except QueueNotFound as error:
                _suggest(link, error)
                raise
            except AckflowError as error:
                if unreachable(error) and link.place.remote and link.place.said_by != "--url":
                    error.message += f" (from {link.place.said_by})"
                raise
            finally:
                link.close()

        run.__doc__ = function.__doc__
        run.__name__ = getattr(function, "__name__", "run")
        _wear(run, function, options)
        app.command(name, rich_help_panel=panel, epilog=epilog)(run)
        return function

    return register


def _wear(
    run: Callable[..., None], function: Callable[..., None], options: dict[str, tuple[Any, Any]]
) -> None:
    """Give a wrapper the parameters of its function, but the link, and those commands share."""
    hints = get_type_hints(function, include_extras=True)
    own = list(signature(function).parameters.values())[1:]
    context = Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in options.items()
    ]
    mine = [p.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
    parameters = [context, *mine, *shared]
    run.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}


def _shared(ctx: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    """The shared options: what a command was given goes before what stood in front of it."""
    before: dict[str, Any] = ctx.find_root().obj or {}
    merged = {name: given[name] or before.get(name) or given[name] for name in given}
    if given["url"] or given["context"]:
        merged |= {"url": given["url"], "context": given["context"]}
    ctx.find_root().obj = merged
    return merged


def _find(shared: dict[str, Any]) -> Place:
    token = shared["bearer"] or os.environ.get("ACKFLOW_TOKEN")
    ca_file = shared["ca_file"] or os.environ.get("ACKFLOW_CA_FILE")
    return places.find(shared["url"], shared["context"], token, ca_file, shared.get("db"))


def _suggest(link: Link, error: QueueNotFound) -> None:
    """A name that is nearly right is told."""
    try:
        names = [queue.name for queue in link.session.queues()]
    except AckflowError:
        return
    wrong = error.message.split("'")
    close = difflib.get_close_matches(wrong[1] if len(wrong) > 1 else "", names, 1)
    if close:
        error.message += f"; did you mean {close[0]!r}?"
    elif not names:
        error.message += "; there are no queues yet"


def complete(ctx: typer.Context) -> list[str]:
    """The queues there are, for the completion of a shell; it must not fail."""
    root = ctx.find_root()
    root.obj = root.params  # while completing, no callback has run
    shared = {name: ctx.params.get(name) for name in _SHARED}
    link = Link(lambda: _find(_shared(ctx, shared)), Output(False), makes=False, keeps=False)
    try:
        return [queue.name for queue in link.session.queues()]
    except AckflowError:
        return []
    finally:
        link.close()


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost. Without a terminal nobody can answer: then --yes must be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} Nobody can be asked here: give --yes to do it")
    answer = ""
    while answer not in ("y", "yes"):
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        _await_line()
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt  # the end of input is no answer
        answer = line.strip().lower()
        if answer in ("", "n", "no"):
            raise Refused("nothing was done")


def _await_line() -> None:
    """Wait for a line of the terminal; an interrupt ends it, also one that comes just before it.

    A plain read does not hear a signal that arrives between the last instruction and the read.
    """
    wakes, woken = socket.socketpair()
    with wakes, woken:
        woken.setblocking(False)
        before = signal.set_wakeup_fd(woken.fileno())
        try:
            select.select([sys.stdin, wakes], [], [])
        finally:
            signal.set_wakeup_fd(before)


def file_of(ctx: typer.Context, db: str | None) -> str | None:
    """The file a server shall serve: --db, or what stood in front of the command; None if neither.

    The environment and the context in use say where clients go, which is not what is served.
    """
    before: dict[str, Any] = ctx.find_root().obj or {}
    url, context = before.get("url"), before.get("context")
    if db is None and url is None and context is None:
        return None
    place = places.find(url, context, db=db)
    if place.remote:
        raise InvalidArgument(
            f"a server serves a database, not another server: name its file, not {place.shown} "
            f"(from {place.said_by})"
        )
    return place.url


def remember(ctx: typer.Context, as_json: bool) -> bool:
    """Whether JSON is wanted, here or in front of the command; errors are told likewise."""
    shared: dict[str, Any] = ctx.find_root().obj or {}
    shared["as_json"] = as_json or bool(shared.get("as_json"))
    ctx.find_root().obj = shared
    return bool(shared["as_json"])


def unreachable(error: AckflowError) -> bool:
    return error.code in _UNREACHABLE


def exit_code(error: AckflowError) -> int:
    if unreachable(error):
        return UNREACHABLE
    if isinstance(error, NotFound):
        return NOTHING
    return USAGE if isinstance(error, InvalidArgument) else FAILED


class Commands(TyperGroup):
    """The group of all commands: it turns what went wrong into a sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of their panels, so that the help tells first what is done most."""

        def place(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return PANELS.index(panel) if panel in PANELS else len(PANELS)

        return sorted(super().list_commands(ctx), key=place)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        self._json = "--json" in args[: args.index("--") if "--" in args else None]
        try:
            return super().make_context(info_name, args, *more, **extra)
        except _UsageError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: Exception) -> Exception:
        """Wrong usage: told here as JSON, else left for Typer to tell."""
        if not self._json:
            return error
        _as_json("usage_error", error.format_message())  # type: ignore[attr-defined]
        return typer.Exit(USAGE)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except _UsageError as error:
            raise self._wrong(error) from None
        except AckflowError as error:
            if isinstance(error, OutputFailed):
                discard()
            _tell(error, self._json)
            raise typer.Exit(exit_code(error)) from None
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            needs = f"pip install 'ackflow[{_EXTRAS[package]}]' ({package} is missing)"
            _tell(
                ExtraMissing(f"`{self.name} {ctx.invoked_subcommand}` needs more: {needs}"),
                self._json,
            )
            raise typer.Exit(FAILED) from None
        except BrokenPipeError:
            discard()  # its reader has what it wanted
            raise typer.Exit(0) from None
        except OSError as error:
            discard()
            _tell(failed(error), self._json)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _tell(error: AckflowError, as_json: bool) -> None:
    message = error.message
    if isinstance(error, errors.Unauthenticated):
        why = error.details.get("hint", "") if error.details.get("error") else ""
        message = f"the server asks for a token{why and f' ({why})'}: give --token, set ACKFLOW_TOKEN, or save it in a context"
    elif isinstance(error, errors.Forbidden):
        message = f"the token does not allow this{_lacks(error)}"
    if as_json:
        _as_json(error.code, message)
    else:
        print(f"ackflow: {safe(message)}", file=sys.stderr)


def _as_json(code: str, message: str) -> None:
    told = {"error": {"code": code, "message": message}}
    print(msgspec.json.encode(told).decode(), file=sys.stderr)


def _lacks(error: errors.Forbidden) -> str:
    role, queue = error.details.get("role"), error.details.get("queue")
    if not role:
        return ""
    if not queue:
        return f": it needs the role {role}"
    return f": it needs the role {role} for {'every queue' if queue == '*' else f'the queue {queue!r}'}"
