"""Validation of arguments: raises `InvalidArgument` with the values that are allowed."""

import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeGuard, TypeVar, get_args

import msgspec
from msgspec import Struct

from .clock import micros
from .errors import InvalidArgument, PayloadTooLarge, UnknownOption, text_of
from .options import (
    DEFAULTS,
    MAX_BATCH,
    MAX_HEADERS,
    MAX_NAME,
    MAX_PRIORITY,
    MIN_HISTORY,
    AckPolicy,
    DeadLetterKind,
    GroupOptions,
    Ordering,
    QueueOptions,
)

S = TypeVar("S", bound=Struct)
Duration = float | timedelta
Reason = str | BaseException
Time = datetime | float
POSTGRES = ("postgresql://", "postgres://")


_NUMBER = (int, float)
_DIALECTS = tuple(DEFAULTS)
_good: set[str] = set()


def name(value: object, what: str) -> str:
    if type(value) is str and value in _good:
        return value
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be text, got {type(value).__name__}")
    if not value or len(writable(value, what).encode()) > MAX_NAME:
        raise InvalidArgument(f"{what} must have 1 to {MAX_NAME} bytes")
    if not value.isprintable():
        raise InvalidArgument(f"{what} {value!r} must consist of printable characters")
    if len(_good) >= 10_000:
        _good.clear()
    _good.add(value)
    return value


def text(value: object, what: str) -> str | None:
    return None if value is None else some_text(value, what)


def reason(value: object) -> str | None:
    """Why a message is nacked or rejected: text, or an exception."""
    return text_of(value) if isinstance(value, BaseException) else text(value, "reason")


def some_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be text, got {type(value).__name__}")
    return writable(value, what)


def writable(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {value!r} must be valid Unicode (UTF-8)") from None
    return value


def numbers(value: object, what: str) -> list[int]:
    """Integers from any iterable, without duplicates, in order."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{what} must be a list of integers, got {value!r}")
    return list(dict.fromkeys(integer(number, what, 0, 1 << 62) for number in value))


def names(value: object, what: str) -> list[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{what} must be a list of strings, got {value!r}")
    return [name(item, what) for item in value]


def page(value: object, parts: int) -> tuple[int, ...] | None:
    """The numbers in the `next` of a page, written with dots."""
    if value is None:
        return None
    found = value.split(".") if isinstance(value, str) else []
    if len(found) != parts or not all(
        part.isascii() and part.isdigit() and len(part) < 19 for part in found
    ):
        raise InvalidArgument(f"after must be the `next` of a page, got {value!r}")
    return tuple(int(part) for part in found)


def integer(value: object, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgument(f"{what} must be an integer from {least} to {most}, got {value!r}")
    return value


def priority(value: object) -> int:
    return integer(value, "priority", 0, MAX_PRIORITY)


def batch(value: object) -> int:
    return integer(value, "batch", 1, MAX_BATCH)


def seconds(value: object, what: str, least: float = 0.0) -> float:
    """A duration as seconds: a number of them, or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, _NUMBER) and not isinstance(value, bool) and least <= value <= 1e10:
        return float(value)
    raise InvalidArgument(
        f"{what} must be a timedelta or a number of seconds, at least {least:g}, got {value!r}"
    )


def seconds_or_none(value: object, what: str) -> float | None:
    return None if value is None else seconds(value, what)


def positive(value: object, what: str) -> float:
    number = seconds(value, what)
    if number <= 0:
        raise InvalidArgument(f"{what} must be more than 0 seconds, got {number:g}")
    return number


def positive_or_none(value: object, what: str) -> float | None:
    return None if value is None else positive(value, what)


def time(value: object, what: str) -> int:
    """A time as microseconds: an aware datetime, or seconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(f"{what} must have a time zone; use datetime.now(timezone.utc)")
        return micros(value.timestamp())
    return micros(seconds(value, what))


def time_or_none(value: object, what: str) -> int | None:
    return None if value is None else time(value, what)


def headers(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            f"headers must be a mapping of text to text, got {type(value).__name__}"
        )
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise InvalidArgument(f"the name and the value of header {key!r} must be text")
        writable(key, "a header")
        writable(item, "a header's value")
    size = sum(len(key) + len(item) for key, item in value.items())
    if size > MAX_HEADERS:
        raise PayloadTooLarge(
            f"the headers of a message must have at most {MAX_HEADERS:,} characters, got {size:,}"
        )
    return dict(value)


def queue_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Validate options of a queue and convert them to their stored form."""
    _known(QueueOptions, given)
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key in _RULES:
            checked[key] = _RULES[key](value, key)
        elif key in ("namespace", "task"):
            checked[key] = name(value, key) if value else text(value, key) or ""
        elif key == "history_seconds":
            checked[key] = seconds(value, key, MIN_HISTORY)
        elif value is None and key in _ENDLESS:
            checked[key] = None
        elif key in ("max_wait_seconds", "retention_seconds", "ttl_seconds"):
            checked[key] = positive(value, key)
        elif key == "priority":
            checked[key] = integer(value, key, -1_000_000, 1_000_000)
        elif key in ("encrypted", "spread"):
            checked[key] = flag(value, key)
        else:
            checked[key] = seconds(value, key)
    return checked


def group_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Validate options of a group and convert them to their stored form."""
    _known(GroupOptions, given)
    checked: dict[str, Any] = {}
    for key, value in given.items():
        if key in _RULES:
            checked[key] = _RULES[key](value, key)
        elif key == "ordering":
            checked[key] = one_of(value, key, get_args(Ordering))
        elif key == "policy":
            checked[key] = one_of(value, key, get_args(AckPolicy))
        elif key == "max_ack_pending":
            checked[key] = _limit(value, key)
        elif key == "start":
            checked[key] = value if value in ("all", "new") else _start(value)
        else:
            raise AssertionError(f"no rule for option {key!r}")
    return checked


def one_of(value: object, what: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise InvalidArgument(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def kind(value: object) -> Any:
    return None if value is None else one_of(value, "kind", get_args(DeadLetterKind))


def dialect(value: object) -> Any:
    return one_of(value, "dialect", _DIALECTS)


def _start(value: object) -> int:
    if isinstance(value, str):
        raise InvalidArgument(f"start must be 'all', 'new' or a time, got {value!r}")
    return time(value, "start")


def _limit(value: object, what: str) -> int | None:
    """A limit; None and -1 mean no limit."""
    if value is None or (value == -1 and not isinstance(value, bool)):
        return None
    return integer(value, what, 1, 1_000_000_000)


def flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False, got {value!r}")
    return value


def _backoff(value: object, what: str) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidArgument(f"{what} must be a list of seconds, got {value!r}")
    return tuple(seconds(step, what) for step in value)


def _known(options: type[S], given: Mapping[str, Any]) -> None:
    names = [field.name for field in msgspec.structs.fields(options)]
    for key in given:
        if key not in names:
            raise UnknownOption(
                f"unknown option {key!r}; the options are {', '.join(sorted(names))}"
            )


_RULES: dict[str, Any] = {
    "lease_seconds": positive,
    "retry_limit": _limit,
    "max_deliver": _limit,
    "backoff": _backoff,
    "max_size": _limit,
}
_ENDLESS = {
    "dedup_seconds", "keep_seconds", "max_wait_seconds", "retention_seconds", "ttl_seconds"
}  # fmt: skip


def place(value: object) -> str:
    """The path of a database file, or `:memory:`."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidArgument(f"a database must be a file path or a URL, got {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise InvalidArgument(f"a database must be a file path or a URL, got {path!r}")
    writable(path, "the path")
    scheme, colon, _ = path.partition("://")
    if colon and scheme.isalpha():
        raise InvalidArgument(
            f"unknown scheme {scheme}://; a database is a file path, postgresql://..., http://... or "
            "https://..."
        )
    return path


def databases(value: object) -> list[str]:
    """The databases of a connection: a path, a URL, URLs separated by commas, or a list of these."""
    if isinstance(value, list | tuple):
        given = [_file(one) for one in value]
        if not given:
            raise InvalidArgument("a list of databases must name at least one")
    elif is_postgres(value):
        given = re.split(r",(?=[a-zA-Z]+://)", value)
    else:
        return [place(value)]
    for one in given:
        if is_url(one) and not is_postgres(one):
            raise InvalidArgument(
                f"{redact_url(one)} cannot be in a list of databases, which may contain "
                "files and PostgreSQL: a server has its own databases"
            )
    return given


def _file(value: object) -> str:
    return value if isinstance(value, str) and is_url(value) else place(value)


def is_postgres(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith(POSTGRES)


def is_url(place: str) -> bool:
    """Whether a database is given by a URL; otherwise it is a local file or `:memory:`."""
    return "://" in place


def redact_url(place: str) -> str:
    """A path or URL for display, with the password masked."""
    if not is_url(place):
        return place
    bare = re.sub(r"(?<=://)([^/@:,]*):[^/@]*@", r"\1:***@", place)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", bare)
