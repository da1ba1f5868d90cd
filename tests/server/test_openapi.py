"""The OpenAPI document: it is whole, it is true, and no request it allows or forbids breaks the server."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis

# It is imported lazily otherwise, beside the threads of a server: on Python 3.11 two threads that
# parse at once fail with "AST constructor recursion depth mismatch" (gh-106905).
import schemathesis.generation.jsonschema.strategy
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation

import ackflow
from ackflow.broker import access_tokens
from ackflow.broker.access_tokens import Grant
from ackflow.server.openapi import FILES, document
from ackflow.server.routes import all_routes

from .conftest import Process

Start = Callable[..., Process]
# All checks but one: what a schema allows may still be refused, such as a name that is not printable.
CHECKS = [
    check for check in schemathesis.checks.CHECKS.get_all()
    if check.__name__ != "positive_data_acceptance"
]  # fmt: skip
# Hypothesis complains about schemas that are slow to fill, and of a document read once for many.
HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


# the document


def made() -> dict[str, Any]:
    return document(all_routes())


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in made()["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_every_route_is_in_the_document() -> None:
    paths = made()["paths"]
    for route in all_routes():
        assert route.method.lower() in paths[route.path]


def test_the_document_is_served_and_describes_itself(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served["openapi"] == "3.1.0"
    assert "/openapi.json" in served["paths"]


def test_every_reference_leads_somewhere() -> None:
    whole = made()
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found.append(value["$ref"])
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(whole)
    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    assert set(found) <= known


def test_every_operation_says_what_it_does_and_how_it_refuses() -> None:
    names = [operation["operationId"] for _, operation in operations()]
    assert len(set(names)) == len(names)
    for name, operation in operations():
        assert operation["summary"], name
        assert operation["responses"]["default"]["content"], name
        assert operation["tags"], name


# the page


def test_the_page_needs_no_other_host(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in FILES:
        text = http.get(f"/docs/{name}" if name else "/docs").text
        assert "http://" not in text
        assert "https://" not in text
        assert "<script>" not in text  # the policy would not run it


def test_what_the_page_needs_is_there_and_nothing_else(http: httpx.Client) -> None:
    assert http.get("/docs/page.js").headers["content-type"].startswith("text/javascript")
    assert http.get("/docs/page.css").headers["content-type"].startswith("text/css")
    assert http.get("/docs/page.html").status_code == 404
    assert http.get("/docs/..%2Fapp.py").status_code == 404


# any request


def hurry(case: schemathesis.Case) -> None:
    """Long polls are answered at once: what is tested is that they are answered well."""
    if not isinstance(case.query, dict):
        return
    for name, short in (("wait", 0.01), ("timeout", 10)):
        if isinstance(case.query.get(name), int | float | str) and name in case.query:
            flag = str(case.query[name]).lower() in ("true", "false")
            case.query[name] = case.query[name] if flag else short
    if "wait" in case.query:
        case.query.setdefault("timeout", 10)


class Try:
    """Sends what Hypothesis makes of one operation, and remembers what was wrong."""

    def __init__(self, server: Process, secret: str, examples: int) -> None:
        self._url = server.url
        self._headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._examples = examples
        self._session = requests.Session()
        self.statuses: dict[int, int] = {}
        self.wrong: list[str] = []

    def all(self) -> None:
        schema = schemathesis.openapi.from_url(self._url + "/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        # The first token closes an open server: what follows would only be answered 401.
        operations.sort(key=lambda one: one.path.startswith("/v1/tokens"))
        for operation in operations:
            self.one(operation, GenerationMode.POSITIVE)
            if operation.body or operation.query:
                self.one(operation, GenerationMode.NEGATIVE)

    def one(self, operation: APIOperation, mode: GenerationMode) -> None:
        @given(operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=self._examples, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=HEALTH,
        )  # fmt: skip
        def send(case: schemathesis.Case) -> None:
            hurry(case)
            answer = case.call(session=self._session, headers=self._headers, timeout=20)
            if operation.path != "/v1/session":  # its status is about the token in the body
                self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as error:
                self.wrong.append(f"{operation.label}: {error}")

        send()

    def close(self) -> None:
        self._session.close()


def try_all(server: Process, secret: str, examples: int) -> dict[int, int]:
    attempt = Try(server, secret, examples)
    try:
        attempt.all()
    finally:
        attempt.close()
    assert not attempt.wrong, "\n\n".join(attempt.wrong[:5])
    assert httpx.get(server.url + "/readyz").status_code == 200
    return attempt.statuses


def make_tokens(db: Path) -> dict[str, str]:
    with ackflow.connect(db, upkeep=False) as session:
        return {
            role: session.broker.do(access_tokens.create, True, role, [Grant(role)], None)
            for role in access_tokens.ROLES
        }


WRITERS = [role for role in access_tokens.ROLES if role != "read-only"]
MANY = int(os.environ.get("ACKFLOW_EXAMPLES", "500"))  # of each operation, in make soak


def test_an_open_server_answers_any_request_as_the_document_says(start_process: Start) -> None:
    statuses = try_all(start_process(), "", 6)
    assert statuses[200] > 0


@pytest.mark.parametrize(
    "role",
    ["none", "read-only", *(pytest.param(role, marks=pytest.mark.outer) for role in WRITERS)],
)
def test_a_closed_server_answers_any_request_as_the_document_says(
    start_process: Start, tmp_path: Path, role: str
) -> None:
    db = tmp_path / "closed.db"
    secret = {"none": "", **make_tokens(db)}[role]
    statuses = try_all(start_process(db=db), secret, 2)
    assert (401 in statuses) == (role == "none")
    assert (403 in statuses) == (role in ("read-only", "read-write"))


@pytest.mark.soak
@pytest.mark.parametrize("role", ["open", "none", *access_tokens.ROLES])
def test_the_server_answers_very_many_requests_as_the_document_says(
    start_process: Start, tmp_path: Path, role: str
) -> None:
    db = tmp_path / "any.db"
    secret = "" if role == "open" else {"none": "", **make_tokens(db)}[role]
    try_all(start_process(db=db), secret, MANY)
