"""The OpenAPI document, made from the table of routes, and a page that shows it.

Everything the page needs is served from here: it works without any other host.
"""

import re
from array import array
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any

import msgspec

from .. import __version__
from .http import Answer, Call, Param, Route, json

JSON = "application/json"
REFS = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_POLICY = b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
FILES = {
    "": ("page.html", b"text/html; charset=utf-8"),
    "page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "page.css": ("page.css", b"text/css; charset=utf-8"),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole server as OpenAPI 3.1."""
    routes = list(routes)
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ackflow",
            "version": __version__,
            "description": "A message queue that knows what became of every message.",
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of every type the routes name, each written once."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._types: list[Any] = []
        for route in routes:
            for type in (route.body, route.error, *route.answers.values()):
                if type is not None and not isinstance(type, str | Mapping):
                    self._types.append(type)
        made, self.components = msgspec.json.schema_components(
            self._types, ref_template=REFS, schema_hook=_special
        )
        self._made = {id(type): schema for type, schema in zip(self._types, made, strict=True)}

    def of(self, type: Any) -> Mapping[str, Any]:
        """A type's schema; a mapping is one already."""
        return type if isinstance(type, Mapping) else self._made[id(type)]


def _special(type: Any) -> dict[str, Any]:
    """What msgspec has no schema for: offsets travel as bytes, all else is any value."""
    if type is array or getattr(type, "__origin__", None) is array:
        return {"type": "string", "contentEncoding": "base64"}
    return {"description": "any value"}


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "tags": [route.tag],
        "summary": route.summary or (route.handler.__doc__ or "").partition("\n")[0],
        "x-role": route.role,
        "responses": _responses(route, schemas),
    }
    if parameters := [*_path(route), *map(_query, route.query)]:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": schemas.of(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.role != "open":
        operation["security"] = [{}, {"bearer": []}]
    return operation


def _name(route: Route) -> str:
    parts = re.findall(r"\w+", route.path)
    return "_".join([route.method.lower(), *parts])


def _path(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name in _PARAMETER.findall(route.path)
    ]


def _query(param: Param) -> dict[str, Any]:
    made: dict[str, Any] = {"name": param.name, "in": "query", "schema": param.schema}
    return {**made, "description": param.says} if param.says else made


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """What the route says it answers; all else is an error in the shape of its dialect."""
    answers: dict[str, Any] = {}
    for status, type in (route.answers or {200: {}}).items():
        answers[str(status)] = _response(HTTPStatus(status).phrase, type, schemas)
    refused = _response("", route.error, schemas)
    if route.role != "open":
        for status in (401, 403):
            answers.setdefault(str(status), {**refused, "description": HTTPStatus(status).phrase})
    answers["default"] = {**refused, "description": "The request was refused"}
    return answers


def _response(says: str, type: Any, schemas: _Schemas) -> dict[str, Any]:
    made: dict[str, Any] = {"description": says}
    if isinstance(type, str):
        made["content"] = {type: {}}
    elif type is not None:
        made["content"] = {JSON: {"schema": schemas.of(type)}}
    return made


async def openapi(call: Call) -> Answer:
    server = call.server
    if server.document is None:
        server.document = msgspec.json.encode(document(server.router.routes))
    return Answer(200, server.document)


@cache
def _file(name: str) -> bytes:
    return (resources.files(__package__) / "docs" / name).read_bytes()


async def page(call: Call) -> Answer:
    name, type = FILES[call.params.get("file", "")]
    headers = ((b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff"))
    return Answer(200, _file(name), type, headers)


async def page_file(call: Call) -> Answer:
    if call.params["file"] not in FILES:
        return json({"error": {"code": "not_found", "message": "there is no such file"}}, 404)
    return await page(call)


ROUTES = (
    Route("GET", "/openapi.json", openapi, "open", tag="operations",
          summary="This description of the server", answers={200: {"type": "object"}}),
    Route("GET", "/docs", page, "open", tag="operations",
          summary="A page that shows the operations and tries them", answers={200: "text/html"}),
    Route("GET", "/docs/{file}", page_file, "open", tag="operations", summary="What the page needs",
          answers={200: "*/*"}),
)  # fmt: skip
