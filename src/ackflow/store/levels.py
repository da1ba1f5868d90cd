"""Durability modes, named for what a power cut may cost."""

from typing import Literal, get_args

from ..errors import InvalidArgument

MayLose = Literal["nothing", "acks", "recent", "everything"]
# What a store calls the level of verbs that must be on disk when they are answered, and of others.
Levels = dict[MayLose, tuple[str, str]]


def chosen(levels: Levels, may_lose: MayLose) -> tuple[str, str]:
    """The two levels of a mode; another mode than there is is refused."""
    if may_lose not in levels:
        modes = ", ".join(get_args(MayLose))
        raise InvalidArgument(f"may_lose is one of {modes}, not {may_lose!r}")
    return levels[may_lose]
