"""Durability modes, named for what a power cut may cost."""

from collections.abc import Mapping
from typing import Literal, TypeVar, get_args

from ..errors import InvalidArgument

MayLose = Literal["nothing", "acks", "recent", "everything"]
T = TypeVar("T")


def chosen(levels: Mapping[MayLose, T], may_lose: MayLose) -> T:
    """What a mode means to a store; another mode than there is is refused."""
    modes = get_args(MayLose)
    if may_lose not in modes:
        raise InvalidArgument(f"may_lose is one of {', '.join(modes)}, not {may_lose!r}")
    return levels[may_lose]
