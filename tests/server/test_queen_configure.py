"""Configure in the Queen dialect: every option has the effect its name promises."""

from typing import Any

import httpx
import pytest

from ackflow import VirtualClock

from ..running import Running

KEY = "ab" * 32
DEFAULTS: dict[str, Any] = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "maxSize": 0,
    "ttl": 3600,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "encryptionEnabled": False,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
    "maxWaitTimeSeconds": 0,
}
CHANGED: dict[str, Any] = {
    "leaseTime": 10,
    "retryLimit": 5,
    "retryDelay": 2500,
    "maxSize": 100,
    "ttl": 7200,
    "priority": 8,
    "delayedProcessing": 1.5,
    "windowBuffer": 4,
    "retentionEnabled": True,
    "retentionSeconds": 86_400,
    "completedRetentionSeconds": 600,
    "encryptionEnabled": True,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "maxWaitTimeSeconds": 1800,
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ACKFLOW_ENCRYPTION_KEY", KEY)
    return monkeypatch


def configure(http: httpx.Client, queue: str = "orders", **options: Any) -> dict[str, Any]:
    answer = http.post("/api/v1/configure", json={"queue": queue, "options": options})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def push(http: httpx.Client, *payloads: Any, queue: str = "orders", **more: Any) -> httpx.Response:
    items = [{"queue": queue, "payload": payload, **more} for payload in payloads]
    return http.post("/api/v1/push", json={"items": items})


def pop(http: httpx.Client, queue: str = "orders", **query: Any) -> list[dict[str, Any]]:
    answer = http.get(f"/api/v1/pop/queue/{queue}", params={"batch": 100, **query})
    return answer.json()["messages"] if answer.status_code == 200 else []


def ack(http: httpx.Client, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = ("transactionId", "partitionId", "leaseId")
    answer = http.post("/api/v1/ack", json={**{f: message[f] for f in fields}, **more})
    found: dict[str, Any] = answer.json()
    return found


def dead(http: httpx.Client, queue: str = "orders") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/api/v1/dlq", params={"queue": queue}).json()[
        "messages"
    ]
    return found


def test_every_option_sent_is_told_as_it_was_sent(http: httpx.Client) -> None:
    assert configure(http, **CHANGED)["options"] == CHANGED


def test_an_option_not_sent_is_told_with_its_default(http: httpx.Client) -> None:
    assert configure(http)["options"] == DEFAULTS


@pytest.mark.parametrize("option", [name for name in CHANGED if name != "encryptionEnabled"])
def test_an_option_not_sent_goes_back_to_its_default(
    http: httpx.Client, served: Running, option: str
) -> None:
    configure(http, encryptionEnabled=True)
    before = served.session.queue_stats("orders").options
    configure(http, **CHANGED)
    found = configure(http, **{k: v for k, v in CHANGED.items() if k != option})
    assert found["options"] == {**CHANGED, option: DEFAULTS[option]}
    configure(http)
    assert served.session.queue_stats("orders").options == before


def test_the_answer_names_the_queue_and_its_first_partition(http: httpx.Client) -> None:
    body = {"queue": "orders", "namespace": "shop", "task": "billing", "options": {}}
    found = http.post("/api/v1/configure", json=body).json()
    assert (found["configured"], found["queue"]) == (True, "orders")
    assert (found["namespace"], found["task"]) == ("shop", "billing")
    push(http, 1)
    (message,) = pop(http)
    assert message["partitionId"] == found["partitionId"]
    assert http.get("/api/v1/resources/queues/orders").json()["id"] == found["queueId"]


def test_namespace_and_task_come_from_the_name_when_they_are_not_sent(http: httpx.Client) -> None:
    found = configure(http, "shop.billing.eu")
    assert (found["namespace"], found["task"]) == ("shop", "billing")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Empty request body"),
        (b"{", "request body"),
        (b"[]", "request body"),
        (b"{}", "queue is required"),
        (b'{"queue":""}', "queue is required"),
        (b'{"queue":"orders","options":{"ttl":-1}}', "ttl"),
        (b'{"queue":"orders","options":{"ttl":"soon"}}', "ttl"),
        (b'{"queue":"orders","options":{"retryLimit":1.5}}', "retryLimit"),
        (b'{"queue":"orders","options":{"maxSize":-1}}', "maxSize"),
    ],
)
def test_what_cannot_be_understood_is_refused(http: httpx.Client, body: bytes, says: str) -> None:
    answer = http.post("/api/v1/configure", content=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert http.get("/api/v1/resources/queues").json() == {"queues": []}


# what each does


def test_lease_time_is_how_long_a_lease_lives(http: httpx.Client, clock: VirtualClock) -> None:
    configure(http, leaseTime=10)
    push(http, 1)
    assert len(pop(http)) == 1
    clock.advance(9.9)
    assert pop(http) == []
    clock.advance(0.1)
    assert len(pop(http)) == 1


def test_a_lease_time_of_0_is_a_minute(http: httpx.Client, clock: VirtualClock) -> None:
    configure(http, leaseTime=0)
    push(http, 1)
    pop(http)
    clock.advance(59)
    assert pop(http) == []
    clock.advance(1)
    assert len(pop(http)) == 1


@pytest.mark.parametrize(("limit", "failures"), [(1, 1), (3, 3), (0, 1)])
def test_retry_limit_is_how_many_failures_make_a_dead_letter(
    http: httpx.Client, limit: int, failures: int
) -> None:
    configure(http, retryLimit=limit)
    push(http, 1)
    words = []
    while messages := pop(http):
        words.append(ack(http, messages[0], status="failed", error="boom")["message"])
    assert words == ["failed_retry"] * (failures - 1) + ["failed_dlq"]


def test_retry_delay_stored_and_never_applied(http: httpx.Client, clock: VirtualClock) -> None:
    configure(http, retryDelay=2500)
    push(http, 1)
    (message,) = pop(http)
    ack(http, message, status="failed")
    clock.advance(2.499)
    assert pop(http) == []
    clock.advance(0.001)
    assert len(pop(http)) == 1


def test_retry_delay_not_sent_delays_nothing(http: httpx.Client) -> None:
    configure(http)
    push(http, 1)
    ack(http, pop(http)[0], status="failed")
    assert len(pop(http)) == 1


def test_max_size_stored_and_never_enforced(http: httpx.Client) -> None:
    configure(http, maxSize=2)
    assert push(http, 1).status_code == 201
    answer = push(http, 2, 3)
    assert answer.status_code == 429
    assert answer.json()["code"] == "queue_full"
    assert [m["data"] for m in pop(http)] == [1]
    assert push(http, 2).status_code == 201


def test_ttl_stored_and_never_applied(http: httpx.Client, clock: VirtualClock) -> None:
    configure(http, ttl=60)
    push(http, 1)
    clock.advance(30)
    push(http, 2)
    clock.advance(30)
    assert [m["data"] for m in pop(http)] == [2]


def test_ttl_not_sent_removes_nothing(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    configure(http)
    push(http, 1)
    clock.advance(100 * 86_400)
    served.session.upkeep()
    assert [m["data"] for m in pop(http)] == [1]


def test_priority_stored_and_unused(http: httpx.Client) -> None:
    body = {"namespace": "ns", "options": {"priority": 1}}
    http.post("/api/v1/configure", json={**body, "queue": "low"})
    http.post("/api/v1/configure", json={**body, "queue": "high", "options": {"priority": 9}})
    push(http, "low", queue="low")
    push(http, "high", queue="high")
    first = http.get("/api/v1/pop", params={"namespace": "ns"}).json()["messages"]
    second = http.get("/api/v1/pop", params={"namespace": "ns"}).json()["messages"]
    assert [first[0]["data"], second[0]["data"]] == ["high", "low"]


def test_delayed_processing_hides_messages_for_a_while(
    http: httpx.Client, clock: VirtualClock
) -> None:
    configure(http, delayedProcessing=5)
    push(http, 1)
    clock.advance(4.9)
    assert pop(http) == []
    clock.advance(0.1)
    assert len(pop(http)) == 1


def test_window_buffer_waits_for_the_last_message_of_a_partition(
    http: httpx.Client, clock: VirtualClock
) -> None:
    configure(http, windowBuffer=5)
    push(http, 1)
    clock.advance(4)
    push(http, 2)
    clock.advance(4)
    assert pop(http) == []
    clock.advance(1)
    assert [m["data"] for m in pop(http)] == [1, 2]


def test_retention_needs_to_be_enabled(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    configure(http, retentionSeconds=60, completedRetentionSeconds=60)
    push(http, 1, 2)
    ack(http, pop(http)[0])
    clock.advance(1000)
    served.session.upkeep()
    assert served.session.queue_stats("orders").messages == 2


def test_retention_removes_what_is_old_consumed_or_not(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    configure(http, retentionEnabled=True, retentionSeconds=60)
    push(http, 1, 2)
    clock.advance(60)
    assert pop(http) == []
    assert served.session.queue_stats("orders").messages == 0


def test_completed_retention_removes_only_what_all_groups_have_passed(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    configure(http, retentionEnabled=True, completedRetentionSeconds=60)
    push(http, 1)
    served.session.group("orders", "slow", dialect="queen")
    ack(http, pop(http)[0])
    clock.advance(100)
    served.session.upkeep()
    assert served.session.queue_stats("orders").messages == 1
    (message,) = pop(http, consumerGroup="slow")
    ack(http, message, consumerGroup="slow")
    served.session.upkeep()
    assert served.session.queue_stats("orders").messages == 0


def test_without_retention_what_is_completed_is_kept_for_ever(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    configure(http)
    push(http, 1)
    ack(http, pop(http)[0])
    clock.advance(1000 * 86_400)
    served.session.upkeep()
    assert [m["data"] for m in pop(http, consumerGroup="late")] == [1]


def test_encryption_enabled_hides_payloads_in_the_store(
    http: httpx.Client, served: Running
) -> None:
    configure(http, encryptionEnabled=True)
    push(http, {"card": "4111111111111111"})
    rows = served.session.broker.look(lambda tx: tx._execute("select data from segments", ()))
    assert b"4111111111111111" not in b"".join(row[0] for row in rows)
    (message,) = pop(http)
    assert message["data"] == {"card": "4111111111111111"}
    ack(http, message, status="dlq")
    assert [m["data"] for m in dead(http)] == [{"card": "4111111111111111"}]


def test_encryption_stays_on_until_it_is_switched_off(http: httpx.Client, served: Running) -> None:
    configure(http, encryptionEnabled=True)
    assert configure(http, leaseTime=10)["options"]["encryptionEnabled"]
    assert http.post("/api/v1/configure", json={"queue": "orders"}).status_code == 200
    assert served.session.queue_stats("orders").options.encrypted
    assert not configure(http, encryptionEnabled=False)["options"]["encryptionEnabled"]
    assert not served.session.queue_stats("orders").options.encrypted


def test_without_a_key_stored_in_clear_with_a_warning(
    http: httpx.Client, key: pytest.MonkeyPatch
) -> None:
    key.delenv("ACKFLOW_ENCRYPTION_KEY")
    body = {"queue": "orders", "options": {"encryptionEnabled": True}}
    answer = http.post("/api/v1/configure", json=body)
    assert answer.status_code == 400
    assert "64 hexadecimal digits" in answer.json()["error"]
    assert http.get("/api/v1/resources/queues").json() == {"queues": []}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_dead_letter_options_never_make_a_limit_drop_a_message(
    http: httpx.Client, wanted: bool
) -> None:
    configure(http, retryLimit=1, deadLetterQueue=wanted, dlqAfterMaxRetries=wanted)
    push(http, 1)
    ack(http, pop(http)[0], status="failed", error="boom")
    assert [(m["data"], m["errorMessage"]) for m in dead(http)] == [(1, "boom")]


@pytest.mark.parametrize("wanted", [True, False])
def test_max_wait_time_deletes_instead_of_dead_lettering(
    http: httpx.Client, served: Running, clock: VirtualClock, wanted: bool
) -> None:
    configure(http, maxWaitTimeSeconds=60, deadLetterQueue=wanted)
    served.session.group("orders", "g")
    push(http, 1)
    clock.advance(60)
    assert pop(http, consumerGroup="g") == []
    (letter,) = dead(http)
    assert (letter["data"], letter["kind"], letter["consumerGroup"]) == (1, "max_wait", "g")


def test_a_queue_never_configured_loses_nothing(
    http: httpx.Client, served: Running, clock: VirtualClock
) -> None:
    push(http, 1, 2)
    ack(http, pop(http)[0])
    clock.advance(1000 * 86_400)
    served.session.upkeep()
    assert [m["data"] for m in pop(http)] == [2]
    assert [m["data"] for m in pop(http, consumerGroup="late")] == [1, 2]


def test_the_options_of_a_queue_can_be_read_again(http: httpx.Client) -> None:
    configure(http, **CHANGED)
    found = http.get("/api/v1/status/queues/orders").json()["queue"]["config"]
    assert found == CHANGED
