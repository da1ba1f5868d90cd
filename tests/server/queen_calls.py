"""The calls of the Queen dialect as tests make them."""

from typing import Any

import httpx


class Queen:
    """A client that shows everything: each call answers with what the server said."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def push(self, queue: str, *payloads: Any, **more: Any) -> list[dict[str, Any]]:
        items = [{"queue": queue, "payload": payload, **more} for payload in payloads]
        return self.push_items(*items)

    def push_items(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.http.post("/api/v1/push", json={"items": items})
        assert answer.status_code == 201, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    def pop(self, queue: str, partition: str | None = None, **query: Any) -> list[dict[str, Any]]:
        path = f"/api/v1/pop/queue/{queue}"
        if partition is not None:
            path += f"/partition/{partition}"
        return self.pop_path(path, **query)

    def pop_path(self, path: str, **query: Any) -> list[dict[str, Any]]:
        given = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in query.items()}
        answer = self.http.get(path, params=given)
        if answer.status_code == 204:
            assert answer.content == b""
            return []
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["messages"]
        return found

    def ack(
        self, message: dict[str, Any], status: str | None = None, lease: bool = True, **more: Any
    ) -> dict[str, Any]:
        answer = self.http.post("/api/v1/ack", json=named(message, status, lease, **more))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ack_batch(self, acks: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
        answer = self.http.post("/api/v1/ack/batch", json={"acknowledgments": acks, **more})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    def transact(self, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = self.http.post("/api/v1/transaction", json={"operations": operations, **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def extend(self, lease: str, **body: Any) -> dict[str, Any]:
        answer = self.http.post(f"/api/v1/lease/{lease}/extend", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def named(
    message: dict[str, Any], status: str | None = None, lease: bool = True, **more: Any
) -> dict[str, Any]:
    """The ack of a message as pop gave it."""
    body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    if lease:
        body["leaseId"] = message["leaseId"]
    if status is not None:
        body["status"] = status
    if message["consumerGroup"] != "__QUEUE_MODE__":
        body["consumerGroup"] = message["consumerGroup"]
    return {**body, **more}


def data(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["data"] for message in messages]


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(http: httpx.Client, path: str, body: Any) -> Any:
    answer = http.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
