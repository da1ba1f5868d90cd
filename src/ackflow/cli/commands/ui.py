"""`ackflow ui`: the dashboard of a database, in the browser."""

import threading
import time
import webbrowser
from typing import Annotated
from urllib.request import urlopen

import typer

from ..command import database_to_serve, require_file
from ..contexts import Location
from ..params import AsJson

PANEL = "Operation"
WAIT_SECONDS = 30.0


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(ui)


def ui(
    ctx: typer.Context,
    db: Annotated[
        str | None,
        typer.Option(help="Database file or URL (default: in the user's data directory)."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every change made by the dashboard.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port (default: a free one).")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    _: AsJson = False,
) -> None:
    """Open the dashboard: serve a database on a port of this machine until Ctrl-C."""
    from ...server import run
    from ...server.console.ui import UiSettings
    from ...server.data_dir import data_file
    from ..streams import persistent

    path = database_to_serve(ctx, db) or data_file()
    require_file(Location(path, None, None, "--db" if db else "the default file"))
    with run.listen("127.0.0.1", port) as sock:
        port = int(sock.getsockname()[1])
    page = f"http://127.0.0.1:{port}/ui/"
    print(f"the dashboard is at {page}", flush=True)
    if browser:
        threading.Thread(target=_open, args=(port, page), daemon=True).start()
    settings = UiSettings(read_only=read_only)
    with persistent():
        run.serve(run.Config(db=path, ports=[port], ui=settings, log_level="warning"))


def _open(port: int, page: str) -> None:
    """Open the page once the server answers."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        try:
            with urlopen(f"http://127.0.0.1:{port}/livez", timeout=1):
                webbrowser.open(page)
                return
        except OSError:
            time.sleep(0.05)
