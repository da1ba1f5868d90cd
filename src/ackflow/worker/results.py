"""Results of messages: the return value of a handler, for the program that pushed the message.

A result is kept only if the push asks for it. It is written in the transaction that settles the
message, so it exists if and only if the message is done, and it is removed after its `ttl`.
"""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .. import validate
from ..errors import AckflowError, InvalidArgument, text_of
from ..session.encoding import encode
from ..session.messages import Delivery
from ..session.results import HEADER, PROGRESS, RESULTS, Asked, ask, asked_by
from ..session.session import Session
from ..session.transaction import Operations
from ..validate import Duration

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
NOT_STORED = "the result could not be stored: "


class ResultTimeout(AckflowError):
    """There is no result yet."""

    code = "result_timeout"
    status = 504


class ResultFailed(AckflowError):
    """The message failed, and will not be tried again."""

    code = "result_failed"


class Progress(Struct, frozen=True):
    """The progress of a message, and the data that its handler recorded last in delivery `attempt`."""

    progress: float
    data: dict[str, Any]
    attempt: int


class Result:
    """The result of a message that was pushed with `asked.header`."""

    def __init__(self, session: Session, id: str) -> None:
        self._session = session
        self.id = validate.name(id, "id")

    def __repr__(self) -> str:
        return f"<Result {self.id}>"

    @property
    def ready(self) -> bool:
        """Whether there is a result, or the message failed."""
        return self._session.value(RESULTS + self.id) is not None

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the result. Raises ResultFailed if the message failed, ResultTimeout if there is
        none in time: it is not done yet, or its result has ended."""
        limit = validate.seconds_or_none(timeout, "timeout")
        until, pause = None if limit is None else time.monotonic() + limit, FIRST_PAUSE
        while True:
            found = self._session.value(RESULTS + self.id)
            if found is not None:
                if "error" in found.data:
                    raise ResultFailed(found.data["error"])
                return found.data["value"]
            left = LONGEST_PAUSE if until is None else until - time.monotonic()
            if left <= 0:
                raise ResultTimeout(f"there is no result of {self.id} after {limit:g} s")
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def progress(self) -> Progress | None:
        """The progress of the message; None if its handler has recorded nothing."""
        found = self._session.value(PROGRESS + self.id)
        return None if found is None else Progress(**found.data)


def record(t: Operations, message: Delivery, value: Any) -> None:
    """Add the result of a message to the transaction that acks it, if the message asks for it.

    A value that cannot be stored becomes an error; it does not fail the transaction.
    """
    asked = asked_by(message)
    if asked is None:
        return
    try:
        encode(value)
        t.put(RESULTS + asked.id, {"value": value}, ttl=asked.ttl)
    except InvalidArgument as error:
        t.put(RESULTS + asked.id, {"error": NOT_STORED + text_of(error)}, ttl=asked.ttl)


def record_failure(t: Operations, message: Delivery, error: BaseException | str) -> None:
    """Add the failure of a message to the transaction that ends it for good."""
    asked = asked_by(message)
    if asked is not None:
        text = error if isinstance(error, str) else text_of(error)
        t.put(RESULTS + asked.id, {"error": text}, ttl=asked.ttl)


def result_of(session: Session, headers: Mapping[str, str]) -> Result:
    """The result that a push with these headers asked for."""
    id = headers.get(HEADER, "").partition(" ")[0]
    if not id:
        raise InvalidArgument("the task keeps no results; give it `result=True`")
    return Result(session, id)


__all__ = [
    "Asked", "Progress", "Result", "ResultFailed", "ResultTimeout", "ask", "asked_by", "record",
    "record_failure", "result_of",
]  # fmt: skip
