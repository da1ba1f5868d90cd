"""Durability modes, named for what a power cut may lose. On SQLite the mode belongs to the file."""

from collections.abc import Mapping
from typing import Literal, TypeVar, cast, get_args

from ..errors import InvalidArgument

MayLose = Literal["nothing", "acks", "recent", "everything"]
MODES = cast("tuple[MayLose, ...]", get_args(MayLose))  # each loses more than the one before it
DEFAULT: MayLose = "acks"
T = TypeVar("T")


def chosen(levels: Mapping[MayLose, T], may_lose: MayLose | None) -> T:
    """Return the setting of a store for a mode; raises InvalidArgument for an unknown mode."""
    return levels[checked(may_lose) or DEFAULT]


def checked(may_lose: MayLose | None) -> MayLose | None:
    if may_lose is not None and may_lose not in MODES:
        raise InvalidArgument(f"may_lose is one of {', '.join(MODES)}, not {may_lose!r}")
    return may_lose


def agreed(named: MayLose | None, of_file: MayLose | None) -> MayLose:
    """Return the mode of a session on a file; it is at least as durable as the mode of the file."""
    if named is None or of_file is None or named == of_file:
        return of_file or named or DEFAULT
    if MODES.index(named) > MODES.index(of_file):
        raise InvalidArgument(
            f"the file promises may_lose={of_file!r} to every session on it, and one with "
            f"{named!r} would break that promise; leave may_lose out, or change the mode of the "
            "file with ackflow.set_may_lose while no session has it open"
        )
    if of_file == "everything":
        raise InvalidArgument(
            f"other sessions on this file may lose everything, so {named!r} cannot be promised; "
            "change the mode of the file with ackflow.set_may_lose while no session has it open"
        )
    return named
