"""Stop on signals: the messages that are being processed are finished, and the exit code is 0."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

from ..context import RunState
from ..hooks import Extension

log = logging.getLogger("ackflow.worker")
SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


class Signals(Extension):
    """On TERM, QUIT or INT, finish running handlers and stop; a second INT stops immediately."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def on_start(self, run: RunState) -> None:
        """Install the handlers, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, _: FrameType | None) -> None:
            if run.interrupted and number == signal.SIGINT:
                raise KeyboardInterrupt
            # Only an attribute is set: a handler runs in the middle of anything, locks included.
            run.interrupt(f"received {signal.Signals(number).name}")

        self._before = {number: signal.signal(number, stop) for number in SIGNALS}

    def interrupted(self, run: RunState) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
