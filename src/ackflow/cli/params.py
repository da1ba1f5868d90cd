"""Parameters that several commands share: queues, groups, durations, times."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from ..options import QUEUE_MODE

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?")


def seconds(text: str | float) -> float:
    """Parse a duration: 30, 30s, 500ms, 5m, 2h or 1d."""
    if isinstance(text, int | float):
        return float(text)
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30, 30s, 500ms, 5m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2] or "s"]


def time(text: str | datetime) -> datetime:
    """Parse a time: 2h (ago), 2026-11-15, 2026-11-15T21:24Z, or seconds since 1970."""
    if isinstance(text, datetime):
        return text
    given = text.strip()
    if _DURATION.fullmatch(given) and not given.replace(".", "").isdigit():
        return datetime.now(UTC) - timedelta(seconds=seconds(given))
    try:
        if given.replace(".", "", 1).isdigit() and len(given) > 8:
            return datetime.fromtimestamp(float(given), UTC)
        found = datetime.fromisoformat(given)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2h (ago), 2026-11-15, 2026-11-15T21:24Z, "
            "or seconds since 1970"
        ) from None
    return found.astimezone(UTC)


def _queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a queue."""
    from .command import queue_names

    return [name for name in queue_names(ctx) if name.startswith(incomplete)]


SHARED_PANEL = "Connection and output"
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON: one document, or one per line for lists.",
        rich_help_panel=SHARED_PANEL,
    ),
]


def wants_json(ctx: typer.Context, as_json: bool) -> bool:
    """Whether --json was given before or after the command; errors use the same format."""
    shared: dict[str, Any] = ctx.find_root().obj or {}
    shared["as_json"] = as_json or bool(shared.get("as_json"))
    ctx.find_root().obj = shared
    return bool(shared["as_json"])


Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", autocompletion=_queues)
]
OptionalQueue = Annotated[
    str | None,
    typer.Argument(
        metavar="QUEUE", help="Name of the queue (default: all).", autocompletion=_queues
    ),
]


def group(text: str) -> str:
    """The name of a group; - is the default group."""
    return QUEUE_MODE if text == "-" else text


def group_option(help: str) -> Any:
    return typer.Option("--group", "-g", parser=group, metavar="GROUP", help=help)


Group = Annotated[str | None, group_option("Name of the group; - is the default group.")]
StateFor = Annotated[str | None, group_option("Show the state of each message for this group.")]
GroupName = Annotated[
    str, typer.Argument(parser=group, metavar="GROUP", help="Name of the group; - is the default.")
]
Partition = Annotated[str | None, typer.Option("--partition", "-p", help="Name of the partition.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of results.")
]
_WHEN = "such as 2h (ago), 2026-11-15 or 2026-11-15T21:24Z"
Since = Annotated[
    datetime | None,
    typer.Option(parser=time, metavar="TIME", help=f"Start time, {_WHEN}."),
]
Until = Annotated[
    datetime | None,
    typer.Option(parser=time, metavar="TIME", help=f"End time, {_WHEN}."),
]


def duration(help: str, *names: str, least: float = 0.0) -> Any:
    """An option for a duration of at least `least` seconds."""

    def parse(text: str | float) -> float:
        found = seconds(text)
        if found < least:
            raise typer.BadParameter(f"must be a duration of at least {least:g}s, got {text!r}")
        return found

    return typer.Option(*names, parser=parse, metavar="DURATION", help=help)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is a dataclass, with the fields of it as parameters instead."""
    hints = get_type_hints(function, include_extras=True)
    *others, last = signature(function).parameters.values()
    kind: Any = hints.pop(last.name)
    fields = get_type_hints(kind, include_extras=True)

    def run(*args: Any, **given: Any) -> None:
        options = kind(**{name: given.pop(name) for name in fields})
        function(*args, **given, **{last.name: options})

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=option, default=getattr(kind, name))
        for name, option in fields.items()
    ]
    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__signature__ = signature(function).replace(parameters=[*others, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = hints | fields
    return run


def days(text: str | float) -> float:
    """Parse days: 30, or a duration with a unit such as 12h."""
    try:
        return float(text)
    except ValueError:
        return seconds(text) / _UNITS["d"]
