"""Errors of AMQP 0-9-1, with the codes and texts of RabbitMQ."""

from ...errors import AckflowError, Forbidden, InvalidArgument, QueueNotFound, StorageFull

NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
_CHANNEL_CODES = frozenset({311, 403, 404, 405, 406})
MAX_TEXT = 255  # a short string, in bytes


class AmqpError(Exception):
    """An error that closes a channel or, if `hard`, the connection."""

    def __init__(self, code: int, text: str, *, hard: bool | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.method = 0  # the class and the method that failed, if one did
        self.hard = code not in _CHANNEL_CODES if hard is None else hard
        shown = f"{NAMES[code]} - {text}".encode()
        if len(shown) > MAX_TEXT:
            shown = shown[: MAX_TEXT - 3].decode(errors="ignore").encode() + b"..."
        self.text = shown.decode()


def no_queue(name: str) -> AmqpError:
    return AmqpError(404, f"no queue '{name}' in vhost '/'")


def no_exchange(name: str) -> AmqpError:
    return AmqpError(404, f"no exchange '{name}' in vhost '/'")


def refused(what: str, name: str, user: str) -> AmqpError:
    return AmqpError(403, f"access to {what} '{name}' in vhost '/' refused for user '{user}'")


def locked(name: str) -> AmqpError:
    return AmqpError(
        405,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match "
        "that of the original declaration.",
    )


def translated(error: AckflowError) -> AmqpError:
    """The AMQP error for an error of the broker that no handler expected."""
    match error:
        case QueueNotFound():
            return no_queue(str(error.details.get("queue", "")))
        case Forbidden():
            return AmqpError(403, error.message)
        case InvalidArgument():
            return AmqpError(406, error.message)
        case StorageFull():
            return AmqpError(506, error.message)
    return AmqpError(541, f"{error.code}: {error.message}")
