"""One database of several: its broker, opened as soon as the database can be reached.

    opening ── opened ──► up ── a call fails with StorageAway ──► away ── it answers again ──► up
        └───── unreachable ──────────────────────────────────────► away

While it is away, calls fail at once instead of waiting: a thread looks for it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from ...errors import AckflowError, StorageAway
from ..broker import Broker
from ..reach.merging import tag_of
from ..views.stats import ready

LOOK_SECONDS = 1.0
log = logging.getLogger("ackflow")


class Database:
    """One of several databases. `place` is its URL or path, as it may be shown."""

    def __init__(self, place: str, open: Callable[[], Broker]) -> None:
        self.place = place
        self.store: int | None = None  # its id, once it was reached
        self.error: StorageAway | None = StorageAway(f"database {place} was not opened yet")
        self._open = open
        self._opened: Broker | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._looking: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Database {self.place}>"

    @property
    def up(self) -> bool:
        return self.error is None

    @property
    def tag(self) -> int:
        """The tag of its rows; see `merging`."""
        if self.store is None:
            raise self._away()
        return tag_of(self.store)

    def open(self) -> None:
        """Open it, or look for it in the background if it cannot be reached."""
        try:
            self._open_now()
        except StorageAway as error:
            self._lost(error)

    @contextlib.contextmanager
    def broker(self) -> Iterator[Broker]:
        """Use its broker; raises StorageAway at once while the database is away."""
        if self.error is not None or self._opened is None:
            raise self._away()
        try:
            yield self._opened
        except StorageAway as error:
            self._lost(error)
            raise self._away() from error

    @property
    def opened(self) -> Broker | None:
        """Its broker, if it was ever reached; the database may be away."""
        return self._opened

    def close(self) -> None:
        self._closed.set()
        if self._looking is not None and self._looking is not threading.current_thread():
            self._looking.join()
        if self._opened is not None:
            self._opened.close()

    def _open_now(self) -> None:
        opened = self._open()
        with self._lock:
            if not self._closed.is_set():
                self._opened, self.store, self.error = opened, opened.store.id, None
                return
        opened.close()

    def _away(self) -> StorageAway:
        return StorageAway(
            f"the database {self.place} is away: {self.error and self.error.message}; "
            "the other databases can be used"
        )

    def _lost(self, error: StorageAway) -> None:
        with self._lock:
            if self._looking is not None or self._closed.is_set():
                return
            self.error = error
            log.warning("the database %s is away: %s", self.place, error.message)
            self._looking = threading.Thread(
                target=self._look, name="ackflow-database", daemon=True
            )
            self._looking.start()

    def _look(self) -> None:
        """Wait until the database answers again."""
        while not self._closed.wait(LOOK_SECONDS):
            try:
                if self._opened is None:
                    self._open_now()
                else:
                    self._opened.read(ready)
            except AckflowError as error:
                if isinstance(error, StorageAway):
                    continue
                log.warning("the database %s cannot be used: %s", self.place, error.message)
                continue
            with self._lock:
                self._looking = None
                self.error = None
            log.warning("the database %s is back", self.place)
            return
