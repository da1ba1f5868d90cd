"""`ackflow`: the commands, and how errors are told."""

import sys
from typing import Annotated

import typer

from ..errors import AckflowError

app = typer.Typer(
    name="ackflow", no_args_is_help=True, pretty_exceptions_enable=False,
    help="A message queue that knows what became of every message.",
)  # fmt: skip


@app.callback()
def _options() -> None:
    """What holds for every command."""


@app.command()
def serve(
    db: Annotated[
        str | None,
        typer.Option(help="Database file [default: in the user's data directory]."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        list[int] | None, typer.Option(help="Port; may be given several times [default: 8000].")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key, PEM.")] = None,
) -> None:
    """Serve a database over HTTP until stopped."""
    from ..server.run import DEFAULT_PORT, Config, serve

    serve(
        Config(db=db, host=host, ports=port or [DEFAULT_PORT], tls_cert=tls_cert, tls_key=tls_key)
    )


def main() -> None:
    try:
        app()
    except AckflowError as error:
        print(f"ackflow: {error.message}", file=sys.stderr)
        sys.exit(1)
