"""What all commands share: the target they work on, shared options, errors and exit codes."""

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
from ..broker import audit
from ..errors import AckflowError, InvalidArgument, QueueNotFound
from ..session.connect import connect
from ..session.session import Session
from . import contexts
from .contexts import Location
from .errors import (
    FAILED,
    INTERRUPTED,
    USAGE,
    CommandRefused,
    ExtraMissing,
    NoDatabase,
    OutputFailed,
    exit_code,
    is_unreachable,
)
from .output import Output, safe
from .params import SHARED_PANEL, AsJson
from .streams import discard, output_error, persistent

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., None])

_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])  # Typer does not export it
# The extra that installs each package that commands import on demand.
_EXTRAS = {
    **dict.fromkeys(("aiohttp", "urllib3"), "client"),
    **dict.fromkeys(("cryptography", "httptools", "prometheus_client", "uvloop"), "server"),
    **dict.fromkeys(("psycopg", "psycopg_binary"), "postgres"),
    **dict.fromkeys(("pyspark", "pyarrow", "py4j"), "spark"),
    "pika": "rabbitmq",
}
PANELS = ("Messages", "Inspection", "Dead letters", "Administration", "Operation")

Url = Annotated[
    str | None,
    typer.Option(
        help="Database file, or URL of PostgreSQL or a server (env: ACKFLOW_URL; default: the "
        "context in use, else the default file of `serve`).",
        rich_help_panel=SHARED_PANEL,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", help="Name of a saved context.", rich_help_panel=SHARED_PANEL),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="Access token of the server; see `ackflow token` (env: ACKFLOW_TOKEN).",
        rich_help_panel=SHARED_PANEL,
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        help="CA certificates to trust, PEM file (env: ACKFLOW_CA_FILE).",
        rich_help_panel=SHARED_PANEL,
    ),
]
_SHARED: dict[str, tuple[Any, Any]] = {
    "url": (Url, None),
    "context": (ContextName, None),
    "bearer": (TokenOption, None),
    "ca_file": (CaFile, None),
    "as_json": (AsJson, False),
}
_FILE: dict[str, tuple[Any, Any]] = {
    "db": (
        Annotated[
            str | None,
            typer.Option(help="Database file; the same as --url.", rich_help_panel=SHARED_PANEL),
        ],
        None,
    )
}
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class Target:
    """The database or server of a command, opened on first use, and the command's output."""

    def __init__(
        self,
        locate: Callable[[], Location],
        out: Output,
        *,
        creates: bool = False,
        long_running: bool = False,
    ) -> None:
        self._locate = locate
        self._creates = creates
        self._long_running = long_running
        self._session: Session | None = None
        self._location: Location | None = None
        self.out = out

    @property
    def location(self) -> Location:
        if self._location is None:
            self._location = self._locate()
        return self._location

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> Session:
        # The broker's log is for programs that run it; a command prints its own result.
        logging.getLogger("ackflow").addHandler(logging.NullHandler())
        location = self.location
        if not location.remote:
            if not self._creates and location.url != ":memory:":
                require_file(location)
            session = connect(location.url, upkeep=self._long_running)
            audit.audit_calls(session.broker, audit.Actor.local_user())
            return session
        return connect(
            location.url,
            token=location.token,
            ca_file=location.ca_file,
            retry=None if self._long_running else _interactive_retry(),
        )

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def require_file(location: Location) -> None:
    """Raise NoDatabase if the file does not exist: only commands that add data create it."""
    if not validate.is_url(location.url) and not os.path.exists(location.url):
        raise NoDatabase(
            f"database {location.url} does not exist (from {location.source}); "
            "`ackflow push` or `ackflow serve` creates it"
        )


def _interactive_retry() -> Any:
    """A retry policy that gives up soon, because a person is waiting."""
    from ..remote.retry import RetryPolicy

    return RetryPolicy(pauses=(0.3,), connect_seconds=3.0)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    creates: bool = False,
    long_running: bool = False,
    local: bool = False,
    needs_reader: bool = False,
    epilog: str | None = None,
) -> Callable[[Callable[Concatenate[Target, P], None]], Callable[Concatenate[Target, P], None]]:
    """Register a function of a target as a command, with the shared options.

    - `creates`: a database file that does not exist is created.
    - `long_running`: it runs upkeep on a file and retries a server with the default policy.
    - `local`: it works on a file, which --db can also name.
    - `needs_reader`: it ends when its output is closed; other commands finish their work.
    """
    options = {**_FILE, **_SHARED} if local else _SHARED

    def register(
        function: Callable[Concatenate[Target, P], None],
    ) -> Callable[Concatenate[Target, P], None]:
        def run(ctx: typer.Context, **given: Any) -> None:
            shared = _merge_shared(ctx, {name: given.pop(name) for name in options})
            target = Target(
                lambda: _locate(shared),
                Output(shared["as_json"]),
                creates=creates,
                long_running=long_running,
            )
            try:
                with nullcontext() if needs_reader else persistent():
                    function(target, **given)  # type: ignore[call-arg]
            except QueueNotFound as error:
                _suggest(target, error)
                raise
            except AckflowError as error:
                location = target.location
                if is_unreachable(error) and location.remote and location.source != "--url":
                    error.message += f" (from {location.source})"
                raise
            finally:
                target.close()

        run.__doc__ = function.__doc__
        run.__name__ = getattr(function, "__name__", "run")
        _set_signature(run, function, options)
        app.command(name, rich_help_panel=panel, epilog=epilog)(run)
        return function

    return register


def _set_signature(
    run: Callable[..., None], function: Callable[..., None], options: dict[str, tuple[Any, Any]]
) -> None:
    """Give a wrapper the parameters of its function, except the target, and the shared options."""
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


def _merge_shared(ctx: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    """The shared options; those after the command take precedence over those before it."""
    before: dict[str, Any] = ctx.find_root().obj or {}
    merged = {name: given[name] or before.get(name) or given[name] for name in given}
    if given["url"] or given["context"]:
        merged |= {"url": given["url"], "context": given["context"]}
    ctx.find_root().obj = merged
    return merged


def _locate(shared: dict[str, Any]) -> Location:
    token = shared["bearer"] or os.environ.get("ACKFLOW_TOKEN")
    ca_file = shared["ca_file"] or os.environ.get("ACKFLOW_CA_FILE")
    return contexts.find(shared["url"], shared["context"], token, ca_file, shared.get("db"))


def _suggest(target: Target, error: QueueNotFound) -> None:
    """Add the name of a similar queue to the error."""
    try:
        names = [queue.name for queue in target.session.queues()]
    except AckflowError:
        return
    close = difflib.get_close_matches(error.details.get("queue", ""), names, 1)
    if close:
        error.message += f"; did you mean {close[0]!r}?"
    elif not names:
        error.message += "; there are no queues yet"


def queue_names(ctx: typer.Context) -> list[str]:
    """The names of all queues, for shell completion; empty if they cannot be read."""
    root = ctx.find_root()
    root.obj = root.params  # no callback has run during completion
    shared = {name: ctx.params.get(name) for name in _SHARED}
    target = Target(lambda: _locate(_merge_shared(ctx, shared)), Output(False))
    try:
        return [queue.name for queue in target.session.queues()]
    except AckflowError:
        return []
    finally:
        target.close()


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandRefused(f"{question} There is no terminal to ask: give --yes to confirm")
    answer = ""
    while answer not in ("y", "yes"):
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        _wait_for_line()
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt  # end of input is not an answer
        answer = line.strip().lower()
        if answer in ("", "n", "no"):
            raise CommandRefused("nothing was changed")


def _wait_for_line() -> None:
    """Wait until the terminal has a line or a signal arrives.

    A plain read would miss a signal that arrives between the last instruction and the read.
    """
    wakes, woken = socket.socketpair()
    with wakes, woken:
        woken.setblocking(False)
        before = signal.set_wakeup_fd(woken.fileno())
        try:
            select.select([sys.stdin, wakes], [], [])
        finally:
            signal.set_wakeup_fd(before)


def database_to_serve(ctx: typer.Context, db: str | None) -> str | None:
    """The database that `serve` uses: --db, or --url or --context before the command, or None.

    ACKFLOW_URL and the context in use are ignored: they name what clients connect to.
    """
    before: dict[str, Any] = ctx.find_root().obj or {}
    url, context = before.get("url"), before.get("context")
    if db is None and url is None and context is None:
        return None
    location = contexts.find(url, context, db=db)
    if location.remote:
        raise InvalidArgument(
            f"a server needs a database, not another server: {location.redacted} "
            f"(from {location.source})"
        )
    return location.url


class Commands(TyperGroup):
    """The group of all commands: it turns exceptions into messages and exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Sort the commands by panel, so that help lists the most used first."""

        def panel_index(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return PANELS.index(panel) if panel in PANELS else len(PANELS)

        return sorted(super().list_commands(ctx), key=panel_index)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        self._json = "--json" in args[: args.index("--") if "--" in args else None]
        try:
            return super().make_context(info_name, args, *more, **extra)
        except _UsageError as error:
            raise self._usage_error(error) from None

    def _usage_error(self, error: Exception) -> Exception:
        """Print a usage error as JSON if requested; otherwise Typer prints it."""
        if not self._json:
            return error
        _print_json_error("usage_error", error.format_message())  # type: ignore[attr-defined]
        return typer.Exit(USAGE)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except _UsageError as error:
            raise self._usage_error(error) from None
        except AckflowError as error:
            if isinstance(error, OutputFailed):
                discard()
            _print_error(error, self._json)
            raise typer.Exit(exit_code(error)) from None
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            install = f"pip install 'ackflow[{_EXTRAS[package]}]' ({package} is missing)"
            command = f"`{self.name} {ctx.invoked_subcommand}`"
            _print_error(ExtraMissing(f"{command} needs an extra: {install}"), self._json)
            raise typer.Exit(FAILED) from None
        except BrokenPipeError:
            discard()  # the reader has what it wanted
            raise typer.Exit(0) from None
        except OSError as error:
            discard()
            _print_error(output_error(error), self._json)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _print_error(error: AckflowError, as_json: bool) -> None:
    message = error.message
    if isinstance(error, errors.Unauthenticated):
        hint = error.details.get("hint", "") if error.details.get("error") else ""
        message = (
            f"the server requires an access token{hint and f' ({hint})'}: give --token, set "
            "ACKFLOW_TOKEN, or save it in a context"
        )
    elif isinstance(error, errors.Forbidden):
        message = f"the token does not allow this{_missing_grant(error)}"
    if as_json:
        _print_json_error(error.code, message)
    else:
        print(f"ackflow: {safe(message)}", file=sys.stderr)


def _print_json_error(code: str, message: str) -> None:
    record = {"error": {"code": code, "message": message}}
    print(msgspec.json.encode(record).decode(), file=sys.stderr)


def _missing_grant(error: errors.Forbidden) -> str:
    role, queue = error.details.get("role"), error.details.get("queue")
    if not role:
        return ""
    if not queue:
        return f": it needs the role {role}"
    queues = "every queue" if queue == "*" else f"the queue {queue!r}"
    return f": it needs the role {role} for {queues}"
