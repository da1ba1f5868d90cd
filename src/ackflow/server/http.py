"""Requests, responses and routes: the layer between a connection and a handler.

A handler is `async def handler(call) -> Response`. It is driven by the futures that it awaits and
has no task of its own, so it must not use `asyncio.timeout` or `asyncio.current_task`. A route names
the role it needs and the function that encodes its errors; the OpenAPI document is generated from
the same table.
"""

import contextlib
import fnmatch
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct, field

from .. import validate
from ..broker.access_tokens import Token
from ..errors import AckflowError, BatchTooLarge, BodyTooLarge, InvalidArgument

if TYPE_CHECKING:
    from .app import Server

Role = Literal["open", "read-only", "read-write", "admin"]
T = TypeVar("T")

JSON = b"application/json"
LARGE_BODY = 256 * 1024  # a body of more bytes is decoded and validated in a worker thread
FEW_ITEMS = 1_000  # of a request, which are converted on the loop
MAX_PARAMETERS = 100
MAX_PATTERN = 255  # characters
MAX_TARGET = 16 * 1024  # bytes of a path with its query
_encode = msgspec.json.Encoder().encode


class _Decoding(threading.local):
    left: float = inf


_decoding = _Decoding()


class Counted(Struct, gc=False):
    """An item of a request body that may have many: one too many ends the decoding of a large body.

    As each item runs some Python, other threads have their turn while a large body is decoded. Such
    structs refer to no other objects of their kind, and the garbage collector does not look at them:
    a collection holds up all threads for as long as it has objects to look at.
    """

    def __post_init__(self) -> None:
        _decoding.left -= 1
        if _decoding.left < 0:
            raise ValueError


@contextlib.contextmanager
def at_most(items: int) -> Iterator[None]:
    """Inside the context, raise BatchTooLarge if a body has more counted items."""
    _decoding.left = items
    try:
        yield
    except (msgspec.ValidationError, InvalidArgument):
        if _decoding.left >= 0:
            raise
        raise BatchTooLarge(f"a request must have at most {items:,} items") from None
    finally:
        _decoding.left = inf


class PathNotFound(AckflowError):
    """No route matches the path."""

    code = "no_such_path"
    status = 404


class MethodNotAllowed(AckflowError):
    """The path does not support the method."""

    code = "method_not_allowed"
    status = 405


Undelivered = Callable[[], Awaitable[None]] | None


class Response(NamedTuple):
    """An HTTP response. `undelivered` is called if the client disconnected before it was sent."""

    status: int
    body: bytes = b""
    type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    undelivered: Undelivered = None


def json(value: object, status: int = 200, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, _encode(value), JSON, headers)


def json_list(values: Iterable[object], status: int = 200) -> Response:
    """Encode many values one by one, so that other threads have their turn."""
    return Response(status, b"[%b]" % b",".join([_encode(value) for value in values]))


def text(value: str, status: int = 200, type: str = "text/plain; charset=utf-8") -> Response:
    return Response(status, value.encode(), type.encode())


def empty(status: int = 204) -> Response:
    return Response(status)


class Call(Struct, eq=False):
    """One HTTP request, with the server that handles it and the token that authenticated it.

    A copy shares headers, params and query, which nothing changes once the head is complete, and
    `from_head`, where a handler keeps what it found in these alone.
    """

    server: "Server"
    client: tuple[str, int]
    secure: bool  # it came over TLS
    method: str = ""
    path: str = ""  # as sent, with percent escapes
    query_string: bytes = b""
    version: str = "1.1"
    headers: dict[bytes, bytes] = field(default_factory=dict)  # by lower-case name
    repeated: tuple[bytes, ...] = ()  # names that were sent more than once
    keep_alive: bool = True
    body: bytes = b""
    arrived: float = 0.0  # when the head was complete, by time.perf_counter
    id: str = ""  # in log lines and in the x-request-id header of the response
    route: "Route | None" = None
    params: dict[str, str] = {}
    admitted: bool = False  # the page and the token may use the route
    cors_headers: tuple[tuple[bytes, bytes], ...] = ()
    wants_continue: bool = False  # the client sends its body only when it is asked to
    refusal: AckflowError | None = None  # found in the head, before the body arrived
    who: Token | None = None  # the caller's token; None if the server requires none
    role: str = ""  # the role that the token must have
    long_poll: bool = False  # its duration includes waiting for messages
    on_disconnect: Callable[[], None] | None = None
    on_written: Callable[[], None] | None = None
    from_head: dict[str, Any] = field(default_factory=dict)
    _query: dict[str, str] | None = None

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header; repeated ones become one list, as RFC 9110 has it."""
        name = name.lower()
        if name in self.headers:
            self.repeated += (name,)
            value = self.headers[name] + b", " + value
        self.headers[name] = value

    def header(self, name: bytes) -> str:
        """A request header by its lower-case name; empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query by name; of repeated ones the last."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else {}
        return self._query

    def check_small_body(self) -> None:
        """Raise BodyTooLarge for a body that would take long to decode on the event loop."""
        if len(self.body) > LARGE_BODY:
            raise too_large(LARGE_BODY)

    def json_body(self, type: type[T], large: bool = False) -> T:
        """The body decoded as JSON of this type, whatever its content type.

        `large`: bodies of any size; those above `LARGE_BODY` are decoded in a worker thread.
        """
        if not large:
            self.check_small_body()
        try:
            if len(self.body) <= LARGE_BODY:
                return msgspec.json.decode(self.body, type=type)
            with at_most(self.server.limits.batch):
                return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"invalid request body: {error}") from None

    def flag(self, name: str) -> bool:
        """A parameter of the query that is true or false; false if it is not given."""
        given = self.query.get(name, "").lower()
        if given not in ("true", "1", "false", "0", ""):
            raise InvalidArgument(f"{name} must be true or false, got {given!r}")
        return given in ("true", "1")

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """An integer parameter of the query, from `least` to `most`."""
        given = self.query.get(name)
        if given is None or given == "":
            return default
        try:
            number = int(given)
        except ValueError:
            raise InvalidArgument(f"{name} must be an integer, got {given!r}") from None
        if not least <= number <= most:
            raise InvalidArgument(f"{name} must be an integer from {least} to {most}, got {number}")
        return number

    def seconds(self, name: str, default: float, most: float) -> float:
        """A parameter of the query in seconds; values above `most` are reduced to it."""
        given = self.query.get(name)
        if given is None or given == "":
            return default
        try:
            return min(validate.seconds(float(given), name), most)
        except ValueError:
            raise InvalidArgument(f"{name} must be a number of seconds, got {given!r}") from None


def name_matcher(pattern: str) -> Callable[[str], object]:
    """A test of names against a shell-style pattern that a client sent.

    `fnmatchcase` would keep thousands of compiled patterns, of any length.
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidArgument(f"a pattern of names must have at most {MAX_PATTERN} characters")
    return re.compile(fnmatch.translate(pattern)).match


def _parse_query(query: bytes) -> dict[str, str]:
    if query.count(b"&") >= MAX_PARAMETERS:
        raise InvalidArgument(f"a query must have at most {MAX_PARAMETERS} parameters")
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


Handler = Callable[[Call], Coroutine[Any, Any, Response]]
ErrorEncoder = Callable[[AckflowError], Response]


class ErrorDetail(Struct, omit_defaults=True):
    """An error: a stable code, a message that may change, and details by name."""

    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorBody(Struct):
    """The body of an error response, unless a dialect has its own form."""

    error: ErrorDetail


def error_response(error: AckflowError) -> Response:
    """Encode an error in the server's own form."""
    return json(ErrorBody(ErrorDetail(error.code, error.message, error.details)), error.status)


class Param(NamedTuple):
    """A query parameter, for the OpenAPI document."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""


class Route(NamedTuple):
    """One operation of the server.

    `queue` is the path parameter that is checked against the queue patterns of the token. A handler
    that finds its queues elsewhere, such as in the body, sets `checks_queues` and checks them with
    `call.server.allow` or `may_see`; without either, the route needs a token for every queue.
    `cookies`: a session of the dashboard is as good as a token.
    `responses` are body types by status: None for no body, text for a content type. `error` is the
    type that `encode_error` writes.
    """

    method: str
    path: str
    handler: Handler
    role: Role = "read-write"
    encode_error: ErrorEncoder = error_response
    tag: str = "ackflow"
    summary: str = ""
    query: tuple[Param, ...] = ()
    body: Any = None
    responses: Mapping[int, Any] = {}
    queue: str = "queue"
    error: Any = ErrorBody
    checks_queues: bool = False
    cookies: bool = False


class _Node:
    __slots__ = ("child", "children", "name", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.child: _Node | None = None
        self.name = ""
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """Finds the route of a path in a tree of its segments; `{name}` matches any one segment."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = _Node()
        self._error_encoders: dict[str, ErrorEncoder] = {}
        for route in self.routes:
            self._add(route)
            self._error_encoders.setdefault(_first_segment(route.path), route.encode_error)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for part in route.path.strip("/").split("/"):
            if part.startswith("{"):
                names.append(part[1:-1])
                if node.child is None:
                    node.child = _Node()
                node = node.child
            else:
                node = node.children.setdefault(part, _Node())
        assert route.method not in node.routes, f"duplicate route {route.method} {route.path}"
        node.routes[route.method] = route, names

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        node, values = self._match(path)
        entry = node.routes.get(method)
        if entry is None and method == "HEAD" and _serves_head(node):
            entry = node.routes["GET"]
        if entry is None:
            allowed = ", ".join(sorted({*node.routes, *(["HEAD"] if _serves_head(node) else [])}))
            raise MethodNotAllowed(f"{path} supports {allowed}, not {method}", allow=allowed)
        route, names = entry
        return route, dict(zip(names, values, strict=True))

    def _match(self, path: str) -> tuple[_Node, list[str]]:
        found = next(_walk(self._root, path.strip("/").split("/"), 0, []), None)
        if found is None:
            raise PathNotFound(f"no route matches {path}")
        return found

    def error_encoder(self, path: str) -> ErrorEncoder:
        """The encoder for a path without a route: that of the routes with the same first segment."""
        return self._error_encoders.get(_first_segment(path), error_response)


def _serves_head(node: _Node) -> bool:
    """Probes and documents answer HEAD; elsewhere GET may change something, such as pop."""
    found = node.routes.get("GET")
    return found is not None and found[0].role == "open"


def _first_segment(path: str) -> str:
    return path.strip("/").partition("/")[0]


def _walk(
    node: _Node, parts: list[str], at: int, values: list[str]
) -> Iterator[tuple[_Node, list[str]]]:
    if at == len(parts):
        if node.routes:
            yield node, values
        return
    part = parts[at]
    if part in node.children:
        yield from _walk(node.children[part], parts, at + 1, values)
    if node.child is not None and part:
        yield from _walk(node.child, parts, at + 1, [*values, unquote(part)])


def too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"a request body must have at most {most:,} bytes; send several requests")
