"""Durability modes, named for what a power cut may cost."""

from typing import Literal

MayLose = Literal["nothing", "acks", "recent", "everything"]
