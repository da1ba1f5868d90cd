"""Live tails: their positions, and a limit on their number."""

import contextlib
import os
from collections.abc import Iterator

from ..limits import ServerBusy

MOST_FOLLOWING = 200  # each reads the ends of its lanes some times a second
MOST_KEPT = 1_000
MOST_POSITIONS = 500_000  # of all tails together; one has as many as its queue has lanes
Positions = dict[int, int]


class Tails:
    """The tails of one server; used on the event loop only."""

    def __init__(self) -> None:
        self._kept: dict[str, Positions] = {}
        self._positions = 0
        self._following = 0

    def after(self, key: str) -> Positions | None:
        """Return the positions of a tail; None for a new one, or after a long pause."""
        return self._kept.get(key)

    def keep(self, after: Positions) -> str:
        """Keep the positions of a tail; return the key by which it continues."""
        key = os.urandom(9).hex()
        self._kept[key] = after
        self._positions += len(after)
        while len(self._kept) > MOST_KEPT or (
            self._positions > MOST_POSITIONS and len(self._kept) > 1
        ):
            self._positions -= len(self._kept.pop(next(iter(self._kept))))
        return key

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Inside the context a tail waits for messages; raises ServerBusy if many do."""
        if self._following >= MOST_FOLLOWING:
            raise ServerBusy(
                f"{MOST_FOLLOWING:,} tails are followed already; try again later", retry_after=5
            )
        self._following += 1
        try:
            yield
        finally:
            self._following -= 1
