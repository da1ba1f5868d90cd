"""When a stage that died is started again, and when that would be in vain.

A stage that says that it cannot work ends the run. So does one that dies again and again before it
got to anything: by errors of its own a few times, killed many times and nothing else moves either.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import AckflowError, InvalidArgument

IN_VAIN = 2  # the exit code of a stage that another start does not help
ERRORS, KILLS = 5, 20
LONG = 60.0  # what lived so long had got to work
SAID = "ackflow pipeline "

# As Python and Java begin the line of an exception; Py4J's own says only that there is another one.
_RAISED = re.compile(r"(?:Caused by: |: )?[\w.]+\.(?!Py4J)\w*(?:Exception|Error): (.+)")

Moved = Callable[[], object]


class Failed(AckflowError):
    """A stage of the pipeline keeps failing; its log says why."""

    code = "pipeline_failed"


class Deaths:
    """The deaths of one stage; `own` tells how far it is, and `all` how far everything is."""

    def __init__(self, name: str, log: Path, own: Moved, all: Moved) -> None:
        self._name, self._log = name, log
        self._errors, self._kills = _InVain(own), _InVain(all)

    def started(self) -> None:
        self._since = time.monotonic()
        self._heard = self._log.stat().st_size if self._log.exists() else 0

    def died(self, code: int) -> None:
        """Count a death; raises when there is no sense in another start."""
        if code == IN_VAIN:
            raise InvalidArgument(self._last_words())
        counted, most = (self._errors, ERRORS) if code > 0 else (self._kills, KILLS)
        n = counted.count(time.monotonic() - self._since)
        if n >= most:
            raise Failed(
                f"{self._name} died {n} times without getting anywhere, the last time with: "
                f"{self._last_words()}; its log is {self._log}"
            )

    def _last_words(self) -> str:
        """What the stage said when it died: its own sentence, else the last line of its log."""
        with self._log.open("rb") as file:
            file.seek(self._heard)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        own = [line.partition(": ")[2] for line in lines if line.startswith(SAID)]
        any_ = [line for line in lines if line]
        return (own or any_ or ["not a word"])[-1]


def reason(error: BaseException) -> str:
    """The line that matters of what Spark says, which is one traceback around another."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := _RAISED.match(line))]
    told = (named or lines or [type(error).__name__])[0]
    return told.split(" SQLSTATE:")[0]


class _InVain:
    """Deaths in a row between which nothing moved."""

    def __init__(self, moved: Moved) -> None:
        self._moved, self._seen, self._n = moved, moved(), 0

    def count(self, lived: float) -> int:
        seen, self._seen = self._seen, self._moved()
        self._n = 1 if lived > LONG or seen != self._seen else self._n + 1
        return self._n
