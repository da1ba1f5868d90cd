"""Requests, responses and routes: the layer between ASGI and a handler.

A handler is `async def handler(call) -> Response`. A route names the role it needs and the function
that encodes its errors; the OpenAPI document is generated from the same table.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from .. import validate
from ..broker.access_tokens import Token
from ..errors import AckflowError, BodyTooLarge, InvalidArgument

if TYPE_CHECKING:
    from .app import Server

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Role = Literal["open", "read-only", "read-write", "admin"]
T = TypeVar("T")

JSON = b"application/json"
_encode = msgspec.json.Encoder().encode


class PathNotFound(AckflowError):
    """No route matches the path."""

    code = "no_such_path"
    status = 404


class MethodNotAllowed(AckflowError):
    """The path does not support the method."""

    code = "method_not_allowed"
    status = 405


class Disconnected(Exception):
    """The client disconnected before it had sent the whole request."""


After = Callable[[bool], Awaitable[None]] | None


class Response(NamedTuple):
    """An HTTP response. `after` is called once it is sent, with whether the client received it."""

    status: int
    body: bytes = b""
    type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    after: After = None


def json(value: object, status: int = 200, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, _encode(value), JSON, headers)


def text(value: str, status: int = 200, type: str = "text/plain; charset=utf-8") -> Response:
    return Response(status, value.encode(), type.encode())


def empty(status: int = 204) -> Response:
    return Response(status)


class Call:
    """One HTTP request, with the server that handles it and the token that authenticated it."""

    __slots__ = (
        "_headers", "_receive", "body", "id", "long_poll", "params", "query", "role", "scope",
        "send", "server", "who",
    )  # fmt: skip

    def __init__(
        self, server: "Server", scope: Scope, receive: Receive, send: Send, params: dict[str, str]
    ) -> None:
        self.server = server
        self.scope = scope
        self._receive = receive
        self.send = send
        self.params = params
        self.query: dict[str, str] = {}
        if query := scope.get("query_string"):
            self.query = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        self.body = b""
        self.id = ""  # in log lines and in the x-request-id header of the response
        self.who: Token | None = None  # the caller's token; None if the server requires none
        self.role = ""  # the role that the token must have
        self.long_poll = False  # its duration includes waiting for messages
        self._headers: dict[bytes, bytes] | None = None

    def header(self, name: bytes) -> str:
        """A request header by its lower-case name; empty if it was not sent."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers.get(name, b"").decode("latin-1")

    def disconnected(self) -> bool:
        """Whether the client has disconnected; only uvicorn reports it while a response is sent."""
        return bool(getattr(getattr(self.send, "__self__", None), "disconnected", False))

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects; only before the response has started."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def json_body(self, type: type[T]) -> T:
        """The body decoded as JSON of this type, whatever its content type."""
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"invalid request body: {error}") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

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


Handler = Callable[[Call], Awaitable[Response]]
ErrorEncoder = Callable[[AckflowError], Response]


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """An error: a stable code, a message that may change, and details by name."""

    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorBody(msgspec.Struct):
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


class _Node:
    __slots__ = ("child", "children", "name", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.child: _Node | None = None
        self.name = ""
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """Finds the route of a path in a tree of its segments; `{name}` matches any one segment.

    A path without parameters is found by one dictionary lookup.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = _Node()
        self._static: dict[str, _Node] = {}
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
        if not names:
            self._static[route.path] = node
        assert route.method not in node.routes, f"duplicate route {route.method} {route.path}"
        node.routes[route.method] = route, names

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        node = self._static.get(path)
        node, values = (node, []) if node is not None else self._match(path)
        entry = node.routes.get(method)
        if entry is None:
            allowed = ", ".join(sorted(node.routes))
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


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """Read the whole body; raise as soon as it exceeds `most` bytes."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > most:
            raise _too_large(most)
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"a request body must have at most {most:,} bytes; send several requests")
