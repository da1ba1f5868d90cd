"""Every route and every verb, called by eight kinds of callers, against a table of who may call it.

A route or verb that is not in the tables fails the test: decide who may call it, and add it.
"""

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest

import ackflow
from ackflow import ids
from ackflow.broker import access_tokens
from ackflow.broker.core import stage
from ackflow.broker.readers import verbs as readers
from ackflow.broker.readers.records import forget_reader
from ackflow.broker.registry import VERBS
from ackflow.broker.requests import (
    BatchCommit,
    BrowseRequest,
    Chunk,
    DeadFilter,
    Hold,
    Mark,
    Operation,
    PopRequest,
    Publication,
    PushOperation,
    PushRequest,
    PutOperation,
    ReaderRequest,
    SettleOperation,
    TransactionRequest,
    Verdict,
)
from ackflow.options import QUEUE_MODE
from ackflow.remote import wire
from ackflow.server import authn
from ackflow.server.routes import all_routes
from ackflow.store.tx import Tx

from ..running import Running

RANK = {"read-only": 0, "read-write": 1, "admin": 2}
CALLERS = {
    "no token": None, "unknown token": None, "revoked token": None,
    "reads another queue": ("read-only", "other"), "reads the queue": ("read-only", "mine"),
    "writes another queue": ("read-write", "other"), "writes the queue": ("read-write", "mine"),
    "admin": ("admin", "*"),
}  # fmt: skip

# Who may call it: the role, and on which queues. "mine": on the queue that the call touches; "any":
# on at least one queue, as the answer shows only those; "all": on every queue; "open": no token.
VERB_TABLE = {
    "read-only mine": """browse dead_count dead_ids dead_letters dead_summary drop_overdue follow group_stats leases
        message partitions peek progress queue_stats reader_lag store_of_lease why""",
    "read-only any": "metrics overdue queues sweeps",
    "read-only all": "brokers value values",
    "read-write mine": """ack_and_pop bind_batch commit_batch configure configure_group delete_message drop_stage
        extend extend_lease hand_over import_messages judge keep_reader lease_next mark_bad pause publish read reader_fetch
        reader_idle reader_stored redrive release_lease seek settle settle_lock settle_many settle_message settle_to
        stage start_reader
        transact""",
    "admin mine": """delete_copied delete_group delete_queue export_dead export_lanes export_queue export_segments
        export_states export_txids import_dead import_done import_lanes import_queue import_segments
        import_settings import_states import_txids purge purge_dead""",
    "admin any": "databases",
}
GROUP = "/api/v1/consumer-groups/{group}"
MESSAGE = "/{partitionId}/{transactionId}"
ROUTE_TABLE = {
    "open": """GET /ui|GET /ui/{file}|GET /ui/{folder}/{file}|GET /openapi.json|GET /docs|GET /docs/{file}|GET /livez|GET /readyz|GET /health""",
    "read-only any": f"""GET /v1/about|GET /metrics|GET /api/v1/dlq|GET /api/v1/consumer-groups
        |GET /api/v1/consumer-groups/lagging|GET {GROUP}|GET /api/v1/resources/queues
        |GET /api/v1/resources/partitions|GET /api/v1/resources/namespaces
        |GET /api/v1/resources/tasks|GET /api/v1/resources/overview|GET /api/v1/messages
        |GET /api/v1/status|GET /api/v1/status/queues|GET /api/v1/status/analytics|GET /v1/overview
        |GET /v1/queues|GET /v1/groups|GET /v1/leases|GET /v1/locate|GET /v1/dead""",
    "read-only all": """GET /api/v1/traces/names|GET /api/v1/traces/by-name/{name}
        |GET /api/v1/status/buffers|GET /v1/series|GET /v1/values
        |GET /v1/brokers|GET /v1/workers|GET /v1/jobs|GET /v1/jobs/{id}|GET /v1/schedules|GET /v1/pipelines""",
    "read-only mine": f"""GET /queue/{{queue}}|GET /api/v1/resources/queues/{{queue}}
        |GET /api/v1/status/queues/{{queue}}|GET /api/v1/status/queues/{{queue}}/messages
        |GET /api/v1/messages{MESSAGE}|GET /api/v1/traces{MESSAGE}|POST /streams/v1/state/get
        |GET /v1/queues/{{queue}}|GET /v1/queues/{{queue}}/groups/{{group}}/partitions|GET /v1/queues/{{queue}}/groups/{{group}}/seek
        |GET /v1/queues/{{queue}}/partitions|GET /v1/queues/{{queue}}/messages|GET /v1/queues/{{queue}}/messages/{{id}}|GET /v1/queues/{{queue}}/messages/{{id}}/payload
        |GET /v1/queues/{{queue}}/tail|GET /v1/queues/{{queue}}/dead|GET /v1/queues/{{queue}}/dead/export""",
    "read-write any": "GET /api/v1/pop",
    "read-write all": "POST /v1/jobs/{id}/interrupt|POST /v1/schedules/{name}/pause",
    "read-write mine": f"""POST /v1/push|POST /v1/pop|POST /queue/{{queue}}/push
        |POST /queue/{{queue}}/pop|POST /queue/{{queue}}/acknowledge
        |POST /queue/{{queue}}/extend-lock|POST /queue/{{queue}}/release
        |POST /queue/{{queue}}/deadletter|POST /api/v1/push|GET /api/v1/pop/queue/{{queue}}
        |GET /api/v1/pop/queue/{{queue}}/partition/{{partition}}|POST /api/v1/ack
        |POST /api/v1/ack/batch|POST /api/v1/transaction|POST /api/v1/lease/{{leaseId}}/extend
        |POST /api/v1/configure|POST {GROUP}/subscription|POST {GROUP}/queues/{{queue}}/seek
        |POST {GROUP}/queues/{{queue}}/partitions/{{partition}}/seek
        |DELETE /api/v1/messages{MESSAGE}|POST /api/v1/messages{MESSAGE}/retry
        |POST /api/v1/traces|POST /streams/v1/queries|POST /streams/v1/cycle|POST /v1/queues/{{queue}}/pause
        |PATCH /v1/queues/{{queue}}|PATCH /v1/queues/{{queue}}/groups/{{group}}|POST /v1/queues/{{queue}}/groups/{{group}}/seek|POST /v1/queues/{{queue}}/messages
        |POST /v1/queues/{{queue}}/messages/{{id}}/settle|DELETE /v1/queues/{{queue}}/messages/{{id}}
        |POST /v1/queues/{{queue}}/leases/{{token}}/release|POST /v1/queues/{{queue}}/leases/{{token}}/extend
        |POST /v1/queues/{{queue}}/dead/redrive""",
    "admin mine": f"""DELETE {GROUP}/queues/{{queue}}|DELETE /api/v1/resources/queues/{{queue}}
        |DELETE /api/v1/queues/{{queue}}/clear|DELETE /v1/queues/{{queue}}|POST /v1/queues/{{queue}}/purge
        |DELETE /v1/queues/{{queue}}/groups/{{group}}|POST /v1/queues/{{queue}}/dead/purge""",
    "admin any": f"DELETE {GROUP}",
    "admin all": """POST /v1/upkeep|POST /api/v1/stats/refresh|GET /api/v1/system/maintenance
        |POST /api/v1/system/maintenance|GET /api/v1/system/maintenance/pop
        |POST /api/v1/system/maintenance/pop|GET /v1/tokens|POST /v1/tokens
        |DELETE /v1/tokens/{name}|GET /v1/audit""",
}
# Tested elsewhere: each verb has its own rule, each of several pushes its own answer, and whoever logs
# in to the dashboard brings the token in the body.
OTHER_ROUTES = {
    "POST /v1/verbs/{verb}", "POST /v1/pushes",
    "GET /v1/session", "POST /v1/session", "DELETE /v1/session",
}  # fmt: skip
VERB_RULES = {name: rule for rule, names in VERB_TABLE.items() for name in names.split()}
ROUTE_RULES = {
    name.strip(): rule for rule, names in ROUTE_TABLE.items() for name in names.split("|")
}


class Place(NamedTuple):
    """What there is of the queue `mine`, for the arguments of a call."""

    id: str
    lane: int
    token: int
    dead: int
    stage: str
    epoch: int
    number: int
    reader_token: int


def chunk(queue: str = "mine") -> Chunk:
    return Chunk(queue, "p", 0, None, array("i", [1]), b"1")


def arguments(verb: str, at: Place) -> tuple[Any, ...]:
    """Arguments with which the verb touches the queue `mine`, and only by what belongs to it."""
    ack = [Mark(Verdict("ack"))]
    push: list[Operation] = [PushOperation(PushRequest([chunk()]))]
    every: dict[str, tuple[Any, ...]] = {
        "browse": (BrowseRequest("mine"),), "dead_count": (DeadFilter("mine"),),
        "dead_ids": (DeadFilter("mine"), 0, 10),
        "dead_letters": (DeadFilter("mine"), 10, 0, None), "dead_summary": ("mine", None),
        "follow": ("mine", None, None, 1, 10), "group_stats": ("mine", QUEUE_MODE),
        "leases": ("mine", None), "message": ("mine", at.id, None), "partitions": ("mine", 0, 10),
        "peek": ("mine", QUEUE_MODE, 10), "progress": ("mine", QUEUE_MODE, None),
        "queue_stats": ("mine",), "why": ("mine", at.id, QUEUE_MODE), "overdue": (), "queues": (),
        "drop_overdue": ("mine", at.id, None),
        "sweeps": (), "brokers": (),
        "value": ("key",), "values": ("", 10, None, False),
        "bind_batch": ("reader", at.epoch, 0, 1, "query", 1, "run"),
        "commit_batch": (BatchCommit("producer", 9),),
        "configure": ("mine", {}, "native"), "configure_group": ("mine", "g", {}, None),
        "delete_message": ("mine", at.id), "drop_stage": (at.stage,), "extend": (at.token, 60.0),
        "extend_lease": ("mine", at.token, 60.0), "release_lease": ("mine", at.token),
        "settle_message": ("mine", QUEUE_MODE, at.id, Verdict("ack"), None),
        "hand_over": ("reader", at.epoch, 0, at.number, 60.0),
        "import_messages": ("mine", [Publication("", ["mine"], b"1")], None),
        "judge": ([SettleOperation(at.token, ack)], []),
        "keep_reader": ("reader", at.epoch, 60.0),
        "lease_next": (ReaderRequest("reader", at.epoch, 0, 1, 1, 60.0),),
        "mark_bad": ("reader", at.epoch, at.number, at.lane, at.reader_token, [0, 1]),
        "pause": ("mine", None, False), "publish": ("producer", 9, [], None), "read": (at.token,),
        "reader_fetch": ("reader", at.epoch, at.number, at.lane, at.reader_token, [0, 1], 10),
        "reader_idle": ("reader", at.epoch, 0), "reader_lag": ("reader", at.epoch),
        "reader_stored": ("reader", at.epoch, at.number, at.lane, at.reader_token, [0, 1]),
        "redrive": (DeadFilter("mine"), None, 10),
        "seek": ("mine", QUEUE_MODE, "end", False, None), "settle": (at.token, ack),
        "settle_lock": ("mine", QUEUE_MODE, at.token, Verdict("ack")),
        "ack_and_pop": ({at.token: ack}, PopRequest("mine", QUEUE_MODE, "c")),
        "settle_many": ({at.token: ack}, False), "settle_to": ("reader", at.epoch, 0, 60.0),
        "stage": ("producer", 9, [chunk()]), "databases": (), "metrics": (), "store_of_lease": (at.token,),
        "start_reader": ("reader", "mine", "spark", False, 0),
        "transact": (TransactionRequest(push),), "delete_group": ("mine", "g"),
        "delete_queue": ("mine",), "delete_copied": ("mine", 0), "purge": ("mine", None), "purge_dead": (DeadFilter("mine"), 10),
        "export_queue": ("mine",), "export_lanes": ("mine", 0, 10),
        "export_segments": ("mine", at.lane, 0, 1000), "export_txids": ("mine", "p", "", 10),
        "export_states": ("mine",), "export_dead": ("mine", 0, 1000),
        "import_queue": ("mine", b""), "import_lanes": ("mine", b""),
        "import_segments": ("mine", "p", 0, b""), "import_txids": ("mine", "p", b""),
        "import_states": ("mine", b""),
        "import_settings": ("mine", b"", 0), "import_dead": ("mine", b""), "import_done": ("mine",),
    }  # fmt: skip
    return every[verb]


def prepare(session: ackflow.Session, queue: str = "mine", prefix: str = "") -> Place:
    """Give a queue one of everything that belongs to a queue."""
    broker, producer, reader = session.broker, prefix + "producer", prefix + "reader"
    broker.do(VERBS["delete_queue"].run, True, queue)
    broker.do(_forget, True, reader, producer)
    session.push(queue, [1, 2, 3, 4], partition="p")
    first, second = session.pop(queue, batch=2)
    second.reject("bad")
    assert first.token is not None
    (dead,) = session.dead_letters(queue)
    made = broker.do(stage.stage, True, producer, 1, [chunk(queue)])
    broker.do(stage.publish, True, producer, 1, [made])
    staged = broker.do(stage.stage, True, producer, 5, [chunk(queue)])
    epoch = broker.do(readers.start_reader, True, reader, queue, "spark", False, 0)
    asked = ReaderRequest(reader, epoch, 0, 1, 99, 60.0)
    number = broker.do(readers.lease_next, True, asked).number
    (part,) = broker.do(readers.hand_over, True, reader, epoch, 0, number, 60.0)
    place = ids.parse_message_id(first.id)
    return Place(first.id, place.lane, ids.parse_token(first.token), dead.id, staged, epoch, number,
                 part.token)  # fmt: skip


def _forget(tx: Tx, reader: str, producer: str) -> None:
    """Remove a reader and a producer; they outlive their queue."""
    forget_reader(tx, reader)
    mark = "$1" if "$1" in tx._sql["producer"] else "?1"
    tx._write(f"delete from producers where producer = {mark}", (producer,))


@pytest.fixture
def callers(served: Running, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The headers of every caller."""
    monkeypatch.setattr(authn, "RELOAD_SECONDS", 0.0)
    do = served.session.broker.do
    headers: dict[str, dict[str, str]] = {}
    for name, granted in CALLERS.items():
        grant = access_tokens.grant("admin" if granted is None else ":".join(granted))
        token = do(access_tokens.create, True, name, [grant], None)
        headers[name] = {"authorization": f"Bearer {token}"}
    do(access_tokens.revoke, True, "revoked token")
    return headers | {"no token": {}, "unknown token": {"authorization": "Bearer ackflow_x"}}


def expected(rule: str, caller: str) -> int:
    """401, 403, or 200 for any answer to a caller that may call it."""
    role, _, queues = rule.partition(" ")
    granted = CALLERS[caller]
    if role == "open":
        return 200
    if granted is None:
        return 401
    enough = RANK[granted[0]] >= RANK[role]
    covered = queues == "any" or granted[1] in ({"*"} if queues == "all" else {"*", "mine"})
    return 200 if enough and covered else 403


def walk(
    rule: str, callers: dict[str, dict[str, str]], send: Callable[[dict[str, str]], httpx.Response]
) -> None:
    """Send a request for every caller, those who are refused first."""
    for caller in sorted(CALLERS, key=lambda caller: -expected(rule, caller)):
        answer = send(callers[caller])
        shown = 200 if answer.status_code not in (401, 403) else answer.status_code
        assert (caller, shown) == (caller, expected(rule, caller)), answer.text
        assert answer.status_code < 500, answer.text


def post(http: httpx.Client, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
    packed = {"content-type": wire.MSGPACK, **headers}
    return http.post(path, content=wire.write(body, wire.MSGPACK), headers=packed)


def test_every_verb_is_in_the_table() -> None:
    assert sorted(VERB_RULES) == sorted(VERBS)
    for name, rule in VERB_RULES.items():
        assert VERBS[name].role == rule.partition(" ")[0], name


def test_every_route_is_in_the_table() -> None:
    known = {f"{route.method} {route.path}": route for route in all_routes()}
    assert sorted({*ROUTE_RULES, *OTHER_ROUTES}) == sorted(known)
    for name, rule in ROUTE_RULES.items():
        assert known[name].role == rule.partition(" ")[0], name


@pytest.mark.parametrize("verb", VERB_RULES)
def test_a_verb_serves_only_callers_whose_token_covers_what_it_touches(
    verb: str, served: Running, http: httpx.Client, callers: dict[str, dict[str, str]]
) -> None:
    body = True, arguments(verb, prepare(served.session))
    walk(VERB_RULES[verb], callers, lambda headers: post(http, f"/v1/verbs/{verb}", body, headers))


MORE: dict[str, tuple[str, str, Callable[[Place], tuple[Any, ...]]]] = {
    "a stage": ("publish", "read-write mine", lambda at: ("new", 1, [at.stage], None)),
    "a stage in a batch": (
        "commit_batch", "read-write mine", lambda at: (BatchCommit("new", 1, [at.stage]),)
    ),
    "the batch of a query": (
        "commit_batch", "read-write mine", lambda at: (BatchCommit("new", 1, query="query", run="r"),)
    ),
    "a hold": (
        "judge", "read-write mine", lambda at: ([], [Hold(at.token, at.lane, [0, 1])])
    ),
    "a hold in a batch": (
        "commit_batch", "read-write mine",
        lambda at: (BatchCommit("new", 1, holds=[Hold(at.token, at.lane, [0, 1])]),),
    ),
    "a push in a batch": (
        "commit_batch", "read-write mine",
        lambda at: (BatchCommit("new", 1, also=[PushOperation(PushRequest([chunk()]))]),),
    ),
    "a value in a batch": (
        "commit_batch", "read-write all",
        lambda at: (BatchCommit("new", 1, also=[PutOperation("key", b"1")]),),
    ),
    "a value": (
        "transact", "read-write all", lambda at: (TransactionRequest([PutOperation("key", b"1")]),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MORE)
def test_what_a_call_brings_with_it_is_checked_too(
    what: str, served: Running, http: httpx.Client, callers: dict[str, dict[str, str]]
) -> None:
    verb, rule, given = MORE[what]
    at = prepare(served.session)
    bind = "reader", at.epoch, 0, at.number, "query", 1, "run"
    served.session.broker.do(VERBS["bind_batch"].run, True, *bind)
    body = True, given(at)
    walk(rule, callers, lambda headers: post(http, f"/v1/verbs/{verb}", body, headers))


@pytest.mark.parametrize("route", ROUTE_RULES)
def test_a_route_serves_only_callers_whose_token_covers_what_it_touches(
    route: str, served: Running, http: httpx.Client, callers: dict[str, dict[str, str]]
) -> None:
    at = prepare(served.session)
    admin = callers["admin"]
    served.session.group("mine", "g")
    pushed = {"items": [{"queue": "mine", "partition": "p", "payload": 1, "transactionId": "t"}]}
    partition = http.post("/api/v1/push", json=pushed, headers=admin).json()[0]["partition_id"]
    named = {"name": "query", "source_queue": "mine", "config_hash": "h"}
    query = http.post("/streams/v1/queries", json=named, headers=admin).json()["query_id"]
    lease = ids.token_uuid(at.token)
    method, _, path = route.partition(" ")
    for name, value in {"queue": "mine", "group": "g", "partitionId": partition, "leaseId": lease,
                        "transactionId": "t", "partition": "p", "id": at.id,
                        "token": ids.token_text(at.token), "name": "nothing"}.items():  # fmt: skip
        path = path.replace(f"{{{name}}}", value)
    ack = {"transactionId": at.id, "partitionId": partition, "leaseId": lease}
    bodies: dict[str, Any] = {
        "/v1/push": PushRequest([chunk()]), "/v1/pop": PopRequest("mine", "g", "c"),
        "/api/v1/push": pushed, "/api/v1/ack": ack, "/api/v1/ack/batch": {"acknowledgments": [ack]},
        "/api/v1/transaction": {"operations": [{"type": "push", **pushed}]},
        "/api/v1/configure": {"queue": "mine"},
        "/api/v1/consumer-groups/g/subscription": {"subscriptionTimestamp": "now"},
        "/api/v1/traces": {"transactionId": "t", "partitionId": partition, "data": {}},
        "/streams/v1/queries": {**named, "reset": True},
        "/streams/v1/state/get": {"query_id": query, "partition_id": partition},
        "/streams/v1/cycle": {"query_id": query, "partition_id": partition},
    }  # fmt: skip
    body = bodies.get(path, {"toEnd": True})
    if path in ("/v1/push", "/v1/pop"):
        walk(ROUTE_RULES[route], callers, lambda headers: post(http, path, body, headers))
        return
    walk(ROUTE_RULES[route], callers,
         lambda headers: http.request(method, path, json=body, headers=headers))  # fmt: skip


def test_a_query_cannot_be_reset_by_registering_it_with_another_source(
    served: Running, http: httpx.Client, callers: dict[str, dict[str, str]]
) -> None:
    named = {"name": "query", "source_queue": "mine", "config_hash": "h"}
    mine, other = callers["writes the queue"], callers["writes another queue"]
    assert http.post("/streams/v1/queries", json=named, headers=mine).status_code == 200
    taken = {**named, "source_queue": "other", "reset": True}
    assert http.post("/streams/v1/queries", json=taken, headers=other).status_code == 403
    again = http.post("/streams/v1/queries", json=named, headers=mine).json()
    assert not again["fresh"]


def test_a_producer_cannot_be_silenced_by_another_token(
    served: Running, http: httpx.Client, callers: dict[str, dict[str, str]]
) -> None:
    """A batch that is not above the highest publishes nothing, so the highest must not be raised."""
    mine, other = callers["writes the queue"], callers["writes another queue"]
    publish = "/v1/verbs/publish"
    huge = True, ("sink", 1 << 59, [], None)
    assert post(http, publish, huge, other).status_code == 200  # an unknown name: not recorded
    for batch in (1, 2):
        staged = post(http, "/v1/verbs/stage", (True, ("sink", batch, [chunk()])), mine).json()
        assert post(http, publish, (True, ("sink", batch, [staged], None)), mine).status_code == 200
        assert post(http, publish, huge, other).status_code == 403
    assert served.session.queue_stats("mine").messages == 2
