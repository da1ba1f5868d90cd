"""`ackflow`: the command line application."""

import os
import sys
from importlib.metadata import version as version_of
from typing import Annotated, Any, get_args

import typer

from .. import __version__, validate
from ..errors import InvalidArgument
from ..options import MAX_BATCH, Counting
from . import contexts
from .command import CaFile, Commands, ContextName, TokenOption, Url, database_to_serve
from .commands import (
    admin,
    bench,
    bridge,
    copy,
    dead,
    doctor,
    inspect,
    jobs,
    keys,
    messages,
    pipeline,
    tokens,
    ui,
    watch,
    work,
)
from .errors import INTERRUPTED
from .output import Output
from .params import AsJson, duration, wants_json
from .streams import persistent

OPERATION = "Operation"
SHELLS = ("bash", "zsh", "fish", "powershell")
EXIT_CODES = (
    "Exit codes: 0 success; 1 failure; 2 usage error; 3 nothing found, such as an empty pop; "
    "4 server or file unreachable; 130 interrupted by Ctrl-C."
)

app = typer.Typer(
    name="ackflow", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ackflow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    url: Url = None,
    context: ContextName = None,
    bearer: TokenOption = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A message queue that records the outcome of every message.

    Shared options may come before or after a command.
    """
    ctx.obj = {
        "url": url, "context": context, "bearer": bearer, "ca_file": ca_file, "as_json": as_json,
    }  # fmt: skip


# The order of the modules is the order of their panels in the help.
for module in (
    messages,
    inspect,
    watch,
    dead,
    admin,
    doctor,
    work,
    bridge,
    bench,
    ui,
    copy,
    contexts,
):
    module.register(app)
app.add_typer(jobs.app, name="jobs", rich_help_panel=OPERATION)
app.add_typer(tokens.app, name="token", rich_help_panel=OPERATION)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATION)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=OPERATION)


@app.command(rich_help_panel=OPERATION)
def version(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the versions of Ackflow, Python and SQLite."""
    show_version(Output(wants_json(ctx, as_json)))


def show_version(out: Output) -> None:
    import apsw

    python, sqlite = sys.version.split()[0], apsw.sqlite_lib_version()
    out.record(
        {"ackflow": __version__, "python": python, "sqlite": sqlite},
        f"ackflow {__version__} (Python {python}, SQLite {sqlite})",
    )


@app.command(rich_help_panel=OPERATION)
def completion(
    shell: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(SHELLS)} (default: from SHELL)."),
    ] = None,
) -> None:
    """Print a shell completion script; to use it: eval "$(ackflow completion bash)"."""
    try:
        from typer._completion_shared import get_completion_script
    except ImportError:  # not a public module
        raise InvalidArgument(
            f"the installed version of Typer ({version_of('typer')}) has no completion scripts; "
            "use one up to 0.29"
        ) from None
    chosen = shell or os.path.basename(os.environ.get("SHELL", ""))
    validate.one_of(chosen, "shell", SHELLS)
    script = get_completion_script(
        prog_name="ackflow", complete_var="_ACKFLOW_COMPLETE", shell=chosen
    )
    print(script)


@app.command(rich_help_panel=OPERATION)
def serve(
    ctx: typer.Context,
    db: Annotated[
        str | None,
        typer.Option(help="Database file (default: in the user's data directory)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port; may be repeated (default: 8000)."),
    ] = None,
    amqp_port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port for AMQP 0-9-1 clients, such as 5672."),
    ] = None,
    amqp_tls_port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port for AMQP 0-9-1 over TLS, such as 5671."),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM file.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key, PEM file.")] = None,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Require a token even if none exists yet.")
    ] = False,
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Serve other machines without authentication.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Allowed CORS origin, or *; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name accepted without a token; may be repeated."),
    ] = None,
    max_body: Annotated[
        str, typer.Option(help="Maximum request body, in bytes or with K, M or G.")
    ] = "64M",
    max_batch: Annotated[
        int, typer.Option(min=1, max=MAX_BATCH, help="Maximum messages in one push or pop.")
    ] = MAX_BATCH,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Maximum number of waiting pops.")
    ] = 10_000,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections.")
    ] = 20_000,
    read_timeout: Annotated[
        float, duration("Maximum time to receive a request, or without a byte read.", least=0.1)
    ] = 60.0,
    log_format: Annotated[str, typer.Option(help="Log format: text or json.")] = "text",
    queen_retry_limit: Annotated[
        str, typer.Option(help="What Queen's retryLimit counts: failures or redeliveries.")
    ] = "failures",
    log_level: Annotated[
        str, typer.Option(help="Log level: debug, info, warning or error.")
    ] = "info",
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request, not only errors.")
    ] = False,
    slow: Annotated[float, duration("Log requests that take at least this long.")] = 1.0,
    show_ui: Annotated[
        bool, typer.Option("--ui/--no-ui", help="Serve the dashboard at /ui.")
    ] = True,
    ui_prefix: Annotated[
        str, typer.Option(help="Path that a proxy in front of the dashboard does not remove.")
    ] = "",
    ui_read_only: Annotated[
        bool, typer.Option("--ui-read-only", help="Refuse every change made by the dashboard.")
    ] = False,
    mask: Annotated[
        list[str] | None,
        typer.Option(help="Fields that the dashboard hides, such as password,card.*."),
    ] = None,
) -> None:
    """Serve a database over HTTP, and AMQP if a port for it is given, until stopped."""
    from ..server import run
    from ..server.console.ui import UiSettings
    from ..server.limits import Limits
    from ..server.logs import FORMATS, LEVELS
    from ..server.request_log import LogSettings

    config = run.Config(
        db=database_to_serve(ctx, db),
        host=host,
        ports=port or [run.DEFAULT_PORT],
        amqp_ports=amqp_port or [],
        amqp_tls_ports=amqp_tls_port or [],
        tls_cert=tls_cert,
        tls_key=tls_key,
        limits=Limits(
            body_bytes=_bytes(max_body),
            batch=max_batch,
            waiting_pops=max_waiting,
            connections=max_connections,
            read_seconds=read_timeout,
        ),
        request_log=LogSettings(slow, access_log),
        cors_origins=cors_origin or [],
        require_token=require_token,
        allow_open=allow_open,
        allowed_hosts=allow_host or [],
        ui=UiSettings(
            enabled=show_ui,
            prefix=_prefix(ui_prefix),
            read_only=ui_read_only,
            mask=_patterns(mask or []),
        ),
        log_format=validate.one_of(log_format, "--log-format", FORMATS),
        log_level=validate.one_of(log_level, "--log-level", LEVELS),
        queen_retry_limit=validate.one_of(
            queen_retry_limit, "--queen-retry-limit", get_args(Counting)
        ),
    )
    with persistent():
        run.serve(config)


def _patterns(given: list[str]) -> tuple[str, ...]:
    """The patterns of --mask, which may be repeated and list several."""
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def _prefix(text: str) -> str:
    """A path such as /tools/ackflow, without a slash at the end."""
    path = text.strip("/")
    if not all(part and part.isascii() and part.isprintable() and not set(part) & set("?#%{} ")
               for part in path.split("/")) and path:  # fmt: skip
        raise InvalidArgument(f"--ui-prefix must be a path such as /tools/ackflow, got {text!r}")
    return f"/{path}" if path else ""


def _bytes(text: str) -> int:
    """Parse a size: 500, 64K, 16M, 1G."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 0)
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or int(digits) == 0:
        raise InvalidArgument(
            f"a size must be a number of bytes, or one with K, M or G, got {text!r}"
        )
    return int(digits) * (unit or 1)


def main() -> Any:
    try:
        if sys.argv[1:] == ["version"]:
            # Scripts call this often, and loading Typer takes longer than the answer.
            show_version(Output(False))
        else:
            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
