"""The calls of the PushPop dialect as tests make them."""

import json
from typing import Any

import httpx
import msgspec

from ackflow.dialects.pushpop.http import ROUTES
from ackflow.server.http import Router

START = 1_700_000_000.0
_router = Router(ROUTES)


def conforms(answer: httpx.Response) -> None:
    """Fail unless the route declares the answer's status, and the answer has the declared shape."""
    answer.read()
    route, _ = _router.find(
        answer.request.method, answer.request.url.raw_path.decode().split("?")[0]
    )
    assert answer.status_code in route.responses, (route.path, answer.status_code)
    as_declared = msgspec.json.decode(answer.content, type=route.responses[answer.status_code])
    assert json.loads(msgspec.json.encode(as_declared)) == answer.json()


def push(http: httpx.Client, item: object, priority: int | None = None, queue: str = "q") -> None:
    body: dict[str, object] = {"item": item}
    if priority is not None:
        body["priority"] = priority
    answer = http.post(f"/queue/{queue}/push", json=body)
    assert answer.status_code == 200, answer.text


def pop(http: httpx.Client, queue: str = "q", **query: object) -> httpx.Response:
    return http.post(f"/queue/{queue}/pop", params=query)  # type: ignore[arg-type]


def lock(http: httpx.Client, queue: str = "q", **query: object) -> dict[str, Any]:
    """Pop with acknowledgement; the answer, which must be a lock."""
    answer = pop(http, queue, require_ack="true", **query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["locked"] is True
    return answer.json()  # type: ignore[no-any-return]


def items(http: httpx.Client, queue: str = "q", **query: object) -> list[Any]:
    """What a plain pop brings."""
    answer = pop(http, queue, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]  # type: ignore[no-any-return]


def settle_lock(
    http: httpx.Client, lock_id: object, verb: str = "acknowledge", **more: object
) -> httpx.Response:
    return http.post(f"/queue/q/{verb}", json={"lock_id": lock_id, **more})
