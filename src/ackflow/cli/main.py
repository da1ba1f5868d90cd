"""`ackflow`: the command line application."""

import os
import sys
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer

from .. import __version__, validate
from ..errors import InvalidArgument
from . import contexts
from .command import CaFile, Commands, ContextName, TokenOption, Url
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
    serve,
    tokens,
    ui,
    watch,
    work,
)
from .errors import INTERRUPTED
from .output import Output
from .params import AsJson, wants_json

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


serve.register(app)


def main() -> Any:
    try:
        if sys.argv[1:] == ["version"]:
            # Scripts call this often, and loading Typer takes longer than the answer.
            show_version(Output(False))
        else:
            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
