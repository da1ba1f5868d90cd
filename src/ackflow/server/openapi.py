"""The OpenAPI document, generated from the routes, and a web page that shows it.

The page loads its files from this server only.
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
from .http import Call, Param, Response, Route, json

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
    """Describe the routes as OpenAPI 3.1."""
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
            "description": "A message queue that records the outcome of every message.",
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The JSON schemas of all types that the routes use, each defined once."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._types: list[Any] = []
        for route in routes:
            for type in (route.body, route.error, *route.responses.values()):
                if type is not None and not isinstance(type, str | Mapping):
                    self._types.append(type)
        made, self.components = msgspec.json.schema_components(
            self._types, ref_template=REFS, schema_hook=_special
        )
        self._made = {id(type): schema for type, schema in zip(self._types, made, strict=True)}

    def of(self, type: Any) -> Mapping[str, Any]:
        """The schema of a type; a mapping is already a schema."""
        return type if isinstance(type, Mapping) else self._made[id(type)]


def _special(type: Any) -> dict[str, Any]:
    """A schema for types that msgspec has none for: arrays are sent as bytes, others are any value."""
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
    return {**made, "description": param.description} if param.description else made


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """The declared responses of a route; every other status is an error."""
    responses: dict[str, Any] = {}
    for status, type in (route.responses or {200: {}}).items():
        responses[str(status)] = _response(HTTPStatus(status).phrase, type, schemas)
    error = _response("", route.error, schemas)
    if route.role != "open":
        for status in (401, 403):
            responses.setdefault(str(status), {**error, "description": HTTPStatus(status).phrase})
    responses["default"] = {**error, "description": "Error"}
    return responses


def _response(description: str, type: Any, schemas: _Schemas) -> dict[str, Any]:
    made: dict[str, Any] = {"description": description}
    if isinstance(type, str):
        made["content"] = {type: {}}
    elif type is not None:
        made["content"] = {JSON: {"schema": schemas.of(type)}}
    return made


async def openapi(call: Call) -> Response:
    server = call.server
    if server.openapi_document is None:
        server.openapi_document = msgspec.json.encode(document(server.router.routes))
    return Response(200, server.openapi_document)


@cache
def _file(name: str) -> bytes:
    return (resources.files(__package__) / "docs" / name).read_bytes()


async def page(call: Call) -> Response:
    name, type = FILES[call.params.get("file", "")]
    headers = ((b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff"))
    return Response(200, _file(name), type, headers)


async def page_file(call: Call) -> Response:
    if call.params["file"] not in FILES:
        return json({"error": {"code": "not_found", "message": "Not found."}}, 404)
    return await page(call)


ROUTES = (
    Route("GET", "/openapi.json", openapi, "open", tag="operations",
          summary="The OpenAPI document of this server", responses={200: {"type": "object"}}),
    Route("GET", "/docs", page, "open", tag="operations",
          summary="A web page to read and try the operations", responses={200: "text/html"}),
    Route("GET", "/docs/{file}", page_file, "open", tag="operations", summary="Files of the web page",
          responses={200: "*/*"}),
)  # fmt: skip
