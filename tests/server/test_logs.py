"""Logs: request ids, JSON lines, and silence about what goes well."""

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ackflow.server.logs import JsonFormatter, TextFormatter
from ackflow.server.request_log import LogSettings, RequestLog

from ..client.waiting import until
from .conftest import Process

Start = Callable[..., Process]


def test_a_request_gets_an_id_of_its_own(http: httpx.Client) -> None:
    first, second = http.get("/livez"), http.get("/livez")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_an_id_that_is_brought_is_echoed(http: httpx.Client) -> None:
    answer = http.get("/livez", headers={"x-request-id": "trace-1234.a/b"})
    assert answer.headers["x-request-id"] == "trace-1234.a/b"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "ä"])
def test_an_id_that_cannot_be_written_anywhere_is_replaced(http: httpx.Client, given: str) -> None:
    answer = http.get("/livez", headers={"x-request-id": given.encode("latin-1")})
    assert answer.headers["x-request-id"] != given


def lines(server: Process) -> list[dict[str, Any]]:
    assert server.stop() == 0
    return [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]


def test_what_goes_well_is_not_logged(start_process: Start) -> None:
    server = start_process("--log-format", "json")
    httpx.post(server.url + "/queue/a/push", json={"item": 1})
    httpx.post(server.url + "/queue/empty/pop")
    assert lines(server) == []


def test_every_request_is_logged_when_asked_for(start_process: Start) -> None:
    server = start_process("--log-format", "json", "--access-log")
    httpx.post(server.url + "/queue/a/push", json={"item": 1}, headers={"x-request-id": "mine-1"})
    (line,) = [line for line in lines(server) if line["path"] == "/queue/a/push"]
    assert line["request_id"] == "mine-1"
    assert (line["method"], line["status"], line["level"]) == ("POST", 200, "info")
    assert line["milliseconds"] > 0
    assert line["time"].endswith("+00:00")


def test_a_refused_token_is_logged(start_process: Start) -> None:
    server = start_process("--log-format", "json", "--require-token")
    httpx.get(server.url + "/metrics")
    (line,) = lines(server)
    assert (line["status"], line["path"]) == (401, "/metrics")


def test_a_dead_letter_is_logged_with_its_reason_and_the_request(start_process: Start) -> None:
    server = start_process("--log-format", "json")
    httpx.post(server.url + "/queue/a/push", json={"item": 1})
    popped = httpx.post(server.url + "/queue/a/pop?require_ack=true").json()
    body = {"lock_id": popped["lock_id"], "reason": "no such customer"}
    assert httpx.post(server.url + "/queue/a/deadletter", json=body).status_code == 200
    (line,) = lines(server)
    assert line["logger"] == "ackflow.dead"
    assert (line["queue"], line["reason"]) == ("a", "no such customer")


def test_text_is_for_people(start_process: Start) -> None:
    server = start_process("--access-log")
    httpx.get(server.url + "/nowhere", headers={"x-request-id": "mine-2"})
    assert server.stop() == 0
    output = server.output()
    assert "GET /nowhere 404 in" in output
    assert "[mine-2]" in output


def test_a_slow_request_is_logged(
    served: Any, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    served.app.request_log = RequestLog(LogSettings(slow_seconds=0.0))
    with caplog.at_level(logging.INFO, "ackflow.server"):
        http.get("/livez")
        until(lambda: "GET /livez 200" in caplog.text)  # it is written once the answer is sent


def record(message: str, **more: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "ackflow", "msg": message, "levelname": "INFO", "created": 0.0, **more}
    )


def test_no_name_can_begin_a_line_of_its_own() -> None:
    forged = "queue a\n1970-01-01T00:00:00.000+00:00 error ackflow: forged"
    assert "\n" not in TextFormatter().format(record(forged))
    assert "\n" not in JsonFormatter().format(record(forged))


def test_fields_of_a_record_are_fields_of_its_line() -> None:
    line = json.loads(JsonFormatter().format(record("hello", queue="a", reason=None)))
    assert line["queue"] == "a"
    assert "reason" not in line


def test_an_exception_is_part_of_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter().format(record("failed", exc_info=info)))
    assert "ValueError: why" in line["exception"]
