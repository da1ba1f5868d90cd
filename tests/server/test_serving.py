"""`ackflow serve` as a process: starting, failing to start, stopping."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .conftest import Process

Start = Callable[..., Process]


def _serve(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ackflow", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_it_says_where_it_listens_and_where_its_data_is(start_process: Start) -> None:
    server = start_process()
    assert server.stop() == 0
    output = server.output()
    assert f"listens on http://127.0.0.1:{server.port}" in output
    assert str(server.db) in output


def test_a_port_in_use_is_told_in_one_sentence(start_process: Start, tmp_path: Path) -> None:
    server = start_process()
    failed = _serve("--db", str(tmp_path / "other.db"), "--port", str(server.port))
    assert failed.returncode == 1
    assert "is in use" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_file_that_cannot_be_written_is_told_in_one_sentence(tmp_path: Path) -> None:
    failed = _serve("--db", str(tmp_path / "no" / "such" / "folder.db"), "--port", "0")
    assert failed.returncode == 1
    assert "does not exist" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_file_that_is_no_database_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are not messages, but they are long enough to be looked at" * 100)
    failed = _serve("--db", str(path), "--port", "0")
    assert failed.returncode == 1
    assert "is not an Ackflow database" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_unknown_path_and_a_wrong_method_are_told_apart(http: httpx.Client) -> None:
    assert http.get("/nowhere").status_code == 404
    answer = http.post("/livez")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "{}/no/such/path", 404, "no_such_path"), ("PATCH", "{}", 405, "method_not_allowed")],
)
def test_a_path_that_is_not_there_is_told_in_the_words_of_its_dialect(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    def told(base: str) -> dict[str, object]:
        answer = http.request(method, path.format(base))
        assert answer.status_code == status
        found: dict[str, object] = answer.json()
        return found

    flat = told("/queue/orders/push")
    assert (flat["success"], flat["error_code"]) == (False, code)
    flat = told("/api/v1/push")
    assert (set(flat), flat["code"]) == ({"error", "code"}, code)
    for base in ("/v1/push", "/livez"):
        nested = told(base)["error"]
        assert isinstance(nested, dict)
        assert nested["code"] == code
