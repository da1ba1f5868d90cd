"""The little HTTP there is between ASGI and a handler: calls, answers, routes.

A handler is `async def handler(call) -> Answer`. Every route says its role and its dialect, which
decides how an error is written; the same table is the source of the OpenAPI document.
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


class NoSuchPath(AckflowError):
    """There is nothing at this path."""

    code = "no_such_path"
    status = 404


class NotAllowed(AckflowError):
    """This path does not take that method."""

    code = "method_not_allowed"
    status = 405


class Disconnected(Exception):
    """The client went away before the request was whole."""


class Answer(NamedTuple):
    """What a handler answers. `after` is called once it was sent, with whether it arrived."""

    status: int
    body: bytes = b""
    type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    after: Callable[[bool], Awaitable[None]] | None = None


def json(value: object, status: int = 200, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, _encode(value), JSON, headers)


def text(value: str, status: int = 200, type: str = "text/plain; charset=utf-8") -> Answer:
    return Answer(status, value.encode(), type.encode())


def empty(status: int = 204) -> Answer:
    return Answer(status)


class Call:
    """One request: where it goes, what it asks, what it brings."""

    __slots__ = (
        "_headers", "_receive", "body", "id", "params", "query", "role", "scope", "send",
        "server", "waits", "who",
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
        self.id = ""  # of the request, in logs and in the answer
        self.who: Token | None = None  # whose token it was, when tokens are asked for
        self.role = ""  # what the token must be good for
        self.waits = False  # it is a long poll
        self._headers: dict[bytes, bytes] | None = None

    def header(self, name: bytes) -> str:
        """A header of the request by its lower-case name; empty when it was not sent."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers.get(name, b"").decode("latin-1")

    def left(self) -> bool:
        """Whether the client has gone; only uvicorn tells that also while an answer is sent."""
        return bool(getattr(getattr(self.send, "__self__", None), "disconnected", False))

    async def leaves(self) -> None:
        """Wait until the client goes away; for a call that is not answered meanwhile."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def decoded(self, type: type[T]) -> T:
        """The body as JSON of this type, whatever content type was named."""
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"the body is not what is expected: {error}") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query; refused when it is none or out of bounds."""
        given = self.query.get(name)
        if given is None or given == "":
            return default
        try:
            number = int(given)
        except ValueError:
            raise InvalidArgument(f"{name} is a whole number, not {given!r}") from None
        if not least <= number <= most:
            raise InvalidArgument(f"{name} is from {least} to {most}, not {number}")
        return number

    def seconds(self, name: str, default: float, most: float) -> float:
        """A number of seconds of the query, cut to what is allowed."""
        given = self.query.get(name)
        if given is None or given == "":
            return default
        try:
            return min(validate.seconds(float(given), name), most)
        except ValueError:
            raise InvalidArgument(f"{name} is a number of seconds, not {given!r}") from None


Handler = Callable[[Call], Awaitable[Answer]]
Refuse = Callable[[AckflowError], Answer]


class Refused(msgspec.Struct, omit_defaults=True):
    """Why a request was refused: a code that stays, a sentence that may change."""

    code: str
    message: str
    details: dict[str, Any] = {}


class Refusal(msgspec.Struct):
    """How an error is written where no dialect says otherwise."""

    error: Refused


def refuse(error: AckflowError) -> Answer:
    """How an error is written where no dialect says otherwise."""
    body: dict[str, object] = {"code": error.code, "message": error.message}
    if error.details:
        body["details"] = error.details
    return json({"error": body}, error.status)


class Param(NamedTuple):
    """A parameter of the query, for the OpenAPI document."""

    name: str
    schema: Mapping[str, Any]
    says: str = ""


class Route(NamedTuple):
    """One operation of the server.

    `queue` names the path parameter a token's queue patterns are held against, if there is one.
    A handler whose queues are elsewhere holds them against the token itself, with
    `call.server.allow` or `sees`, and says so by `checks`: otherwise only a token for every queue
    is good for the route. `answers` are types by status, None for no body, or a content type as
    text; `error` is the type of what `refuse` writes.
    """

    method: str
    path: str
    handler: Handler
    role: Role = "read-write"
    refuse: Refuse = refuse
    tag: str = "ackflow"
    summary: str = ""
    query: tuple[Param, ...] = ()
    body: Any = None
    answers: Mapping[int, Any] = {}
    queue: str = "queue"
    error: Any = Refusal
    checks: bool = False


class _Node:
    __slots__ = ("child", "children", "name", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.child: _Node | None = None
        self.name = ""
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """Finds the route of a path, one step per segment; `{name}` takes any one segment.

    A path that is written out in a route is found in one step.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = _Node()
        self._written: dict[str, _Node] = {}
        self._dialects: dict[str, Refuse] = {}
        for route in self.routes:
            self._add(route)
            self._dialects.setdefault(_first(route.path), route.refuse)

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
            self._written[route.path] = node
        assert route.method not in node.routes, f"{route.method} {route.path} is there twice"
        node.routes[route.method] = route, names

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        node = self._written.get(path)
        node, values = (node, []) if node is not None else self._walked(path)
        entry = node.routes.get(method)
        if entry is None:
            allowed = ", ".join(sorted(node.routes))
            raise NotAllowed(f"{path} takes {allowed}, not {method}", allow=allowed)
        route, names = entry
        return route, dict(zip(names, values, strict=True))

    def _walked(self, path: str) -> tuple[_Node, list[str]]:
        found = next(_walk(self._root, path.strip("/").split("/"), 0, []), None)
        if found is None:
            raise NoSuchPath(f"there is nothing at {path}")
        return found

    def dialect(self, path: str) -> Refuse:
        """How an error is written where no route is found: as the routes beside it would."""
        return self._dialects.get(_first(path), refuse)


def _first(path: str) -> str:
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
    """The whole body; refused as soon as it is known to be too large."""
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
    return BodyTooLarge(f"a request body has at most {most:,} bytes; send it in parts")
