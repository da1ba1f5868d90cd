"""`ackflow serve`: serve a database over HTTP and AMQP."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from ... import validate
from ...errors import InvalidArgument
from ...options import MAX_BATCH, Counting
from ..command import database_to_serve
from ..params import duration, with_options
from ..streams import persistent

if TYPE_CHECKING:
    from ...server.run import Config

PANEL = "Operation"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(with_options(serve))


@dataclass
class ServeOptions:
    """The options of `ackflow serve`."""

    db: Annotated[
        str | None,
        typer.Option(help="Database file (default: in the user's data directory)."),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port; may be repeated (default: 8000)."),
    ] = None
    amqp_port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port for AMQP 0-9-1 clients, such as 5672."),
    ] = None
    amqp_tls_port: Annotated[
        list[int] | None,
        typer.Option(min=0, max=65535, help="Port for AMQP 0-9-1 over TLS, such as 5671."),
    ] = None
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM file.")] = None
    tls_key: Annotated[str | None, typer.Option(help="Private key, PEM file.")] = None
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Require a token even if none exists yet.")
    ] = False
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="Serve other machines without authentication.")
    ] = False
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Allowed CORS origin, or *; may be repeated."),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name accepted without a token; may be repeated."),
    ] = None
    max_body: Annotated[
        str, typer.Option(help="Maximum request body, in bytes or with K, M or G.")
    ] = "64M"
    max_batch: Annotated[
        int, typer.Option(min=1, max=MAX_BATCH, help="Maximum messages in one push or pop.")
    ] = MAX_BATCH
    max_waiting: Annotated[int, typer.Option(min=0, help="Maximum number of waiting pops.")] = (
        10_000
    )
    max_connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections.")
    ] = 20_000
    read_timeout: Annotated[
        float, duration("Maximum time to receive a request, or without a byte read.", least=0.1)
    ] = 60.0
    log_format: Annotated[str, typer.Option(help="Log format: text or json.")] = "text"
    queen_retry_limit: Annotated[
        str, typer.Option(help="What Queen's retryLimit counts: failures or redeliveries.")
    ] = "failures"
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = (
        "info"
    )
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request, not only errors.")
    ] = False
    slow: Annotated[float, duration("Log requests that take at least this long.")] = 1.0
    show_ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the dashboard at /ui.")] = (
        True
    )
    ui_prefix: Annotated[
        str, typer.Option(help="Path that a proxy in front of the dashboard does not remove.")
    ] = ""
    ui_read_only: Annotated[
        bool, typer.Option("--ui-read-only", help="Refuse every change made by the dashboard.")
    ] = False
    mask: Annotated[
        list[str] | None,
        typer.Option(help="Fields that the dashboard hides, such as password,card.*."),
    ] = None


def serve(ctx: typer.Context, options: ServeOptions) -> None:
    """Serve a database over HTTP, and AMQP if a port for it is given, until stopped."""
    from ...server import run

    config = _config(options, database_to_serve(ctx, options.db))
    with persistent():
        run.serve(config)


def _config(given: ServeOptions, db: str | None) -> "Config":
    # Imported here: other commands start faster without it.
    from ...server import run
    from ...server.console.ui import UiSettings
    from ...server.limits import Limits
    from ...server.logs import FORMATS, LEVELS
    from ...server.request_log import LogSettings

    return run.Config(
        db=db,
        host=given.host,
        ports=given.port or [run.DEFAULT_PORT],
        amqp_ports=given.amqp_port or [],
        amqp_tls_ports=given.amqp_tls_port or [],
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        limits=Limits(
            body_bytes=_bytes(given.max_body),
            batch=given.max_batch,
            waiting_pops=given.max_waiting,
            connections=given.max_connections,
            read_seconds=given.read_timeout,
        ),
        request_log=LogSettings(given.slow, given.access_log),
        cors_origins=given.cors_origin or [],
        require_token=given.require_token,
        allow_open=given.allow_open,
        allowed_hosts=given.allow_host or [],
        ui=UiSettings(
            enabled=given.show_ui,
            prefix=_prefix(given.ui_prefix),
            read_only=given.ui_read_only,
            mask=_patterns(given.mask or []),
        ),
        log_format=validate.one_of(given.log_format, "--log-format", FORMATS),
        log_level=validate.one_of(given.log_level, "--log-level", LEVELS),
        queen_retry_limit=validate.one_of(
            given.queen_retry_limit, "--queen-retry-limit", get_args(Counting)
        ),
    )


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
