"""A tenant with tokens for its own queues attacks another's: nothing of the other changes or shows.

Calls of every verb and route are made from the tenant's own queues, leases, readers, producers and
ids, in which parts are replaced by those of the other tenant, at random.
"""

import random
from collections import Counter
from typing import Any

import httpx
import msgspec
import pytest

from ackflow import ids
from ackflow.broker import access_tokens
from ackflow.broker.registry import VERBS
from ackflow.broker.requests import PushOperation, PushRequest, TransactionRequest
from ackflow.remote import wire
from ackflow.server import authn

from ..running import Running
from .test_callers import Place, arguments, chunk, post, prepare

# How the rows of the queue `mine` are found in each table.
LANES = "(select id from lane_rows where queue = {queue})"
GROUPS = "(select id from groups where queue = {queue})"
TABLES = {
    "queues": "id = {queue}", "partitions": "queue = {queue}", "lane_rows": "queue = {queue}",
    "segments": f"lane in {LANES}", "gone": f"lane in {LANES}", "groups": "queue = {queue}",
    "bodies": f"""id in (select body from segments where lane in {LANES} and body > 0)
        or id in (select body from stages where queue = 'mine')""",
    "cursors": f"lane in {LANES}", "claim_rows": f"lane in {LANES}", "leases": f"grp in {GROUPS}",
    "dead": "queue = {queue}", "txids": f"lane in {LANES}", "stages": "queue = 'mine'",
    "producers": "producer = 'producer'", "readers": "id = 'reader'", "hands": "reader = 'reader'",
    "hand_parts": "reader = 'reader'", "traces": f"lane in {LANES}",
    "kv": "key not like 'streams/%' or value like '%mine%' or key in ('owned', {states})",
    "keys": "key = 'order-1'",
}  # fmt: skip
SECRET = "the secret of mine"


class Victim:
    """The queue `mine`, and every id by which something of it is found."""

    def __init__(self, served: Running, http: httpx.Client, admin: dict[str, str]) -> None:
        self.session = served.session
        self.at = prepare(self.session)
        self.session.push("mine", SECRET, partition="p", headers={"h": SECRET})
        item = {"queue": "mine", "partition": "p", "payload": SECRET, "transactionId": "tx"}
        pushed = http.post("/api/v1/push", json={"items": [item]}, headers=admin).json()
        self.partition = pushed[0]["partition_id"]
        named = {"name": "query", "source_queue": "mine", "config_hash": "h", "reset": True}
        answer = http.post("/streams/v1/queries", json=named, headers=admin)
        self.query = answer.json()["query_id"]
        ops = [{"type": "upsert", "key": "k", "value": SECRET}]
        state = {"query_id": self.query, "partition_id": self.partition, "state_ops": ops}
        assert http.post("/streams/v1/cycle", json=state, headers=admin).status_code == 200
        trace = {"transactionId": "tx", "partitionId": self.partition, "data": SECRET,
                 "traceNames": ["name"]}  # fmt: skip
        assert http.post("/api/v1/traces", json=trace, headers=admin).status_code == 201
        keyed = PushRequest([chunk()], key="order-1")
        assert post(http, "/v1/push", keyed, admin).status_code == 200

    @property
    def pool(self) -> list[Any]:
        """Everything that another tenant may have learned or guessed."""
        at = self.at
        return [
            "mine", "reader", "producer", "query", "p", "key", "order-1", "tx", "name", at.id,
            at.lane, at.token, at.dead, at.stage, at.epoch, at.number, at.reader_token,
            self.partition, self.query, ids.token_uuid(at.token), ids.token_text(at.token),
            ids.token_uuid(at.reader_token), ids.token_text(at.reader_token),
        ]  # fmt: skip

    def rows(self) -> dict[str, list[Any]]:
        """Every stored row that belongs to it."""
        states = f"'streams/states/{self.query}'"

        def read(tx: Any) -> dict[str, list[Any]]:
            (queue,) = tx.connection.execute("select id from queues where name = 'mine'").fetchone()
            found = {}
            for table, where in TABLES.items():
                condition = where.format(queue=queue, states=states)
                sql = f"select * from {table} where {condition}"
                found[table] = sorted(tx.connection.execute(sql).fetchall(), key=repr)
            return found

        return _with_connection(self.session, read)


def _with_connection(session: Any, read: Any) -> Any:
    class Opened:
        connection = session.broker.store._db

    with session.broker.writer.exclusively():
        return read(Opened)


@pytest.fixture
def tenants(
    served: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> tuple[Victim, Place, list[dict[str, str]]]:
    """The victim, what the attacker owns, and the headers of the attacker's tokens."""
    monkeypatch.setattr(authn, "RELOAD_SECONDS", 0.0)
    do = served.session.broker.do

    def headers(name: str, *grants: str) -> dict[str, str]:
        given = [access_tokens.grant(one) for one in grants]
        return {"authorization": f"Bearer {do(access_tokens.create, True, name, given, None)}"}

    admin = headers("admin", "admin")
    evil = [
        headers("evil", "read-write:evil.*"), headers("evil-admin", "admin:evil.*"),
        headers("evil-mixed", "admin:evil.*", "read-write:mine.*", "read-only:*.mine"),
    ]  # fmt: skip
    victim = Victim(served, http, admin)
    return victim, prepare(served.session, "evil.q", "evil-"), evil


OWN = {
    "mine": "evil.q",
    "reader": "evil-reader",
    "producer": "evil-producer",
    "query": "evil-query",
}


def own(value: Any) -> Any:
    """The same arguments with the names of the attacker."""
    if isinstance(value, dict):
        return {own(key): own(item) for key, item in value.items()}
    if isinstance(value, list):
        return [own(item) for item in value]
    return OWN.get(value, value) if isinstance(value, str) else value


def swap(value: Any, pool: list[Any], chosen: random.Random) -> Any:
    """Replace leaves by something of the same type that belongs to the victim."""
    if isinstance(value, dict):
        return {swap(key, pool, chosen) if type(key) is int else key: swap(item, pool, chosen)
                for key, item in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [swap(item, pool, chosen) for item in value]
    if chosen.random() < 0.35:
        alike = [one for one in pool if type(one) is type(value)]
        if alike:
            return chosen.choice(alike)
        if value is None:
            return chosen.choice(pool)
    return value


def routes(at: Place, pool: list[Any], chosen: random.Random) -> tuple[str, str, Any]:
    """A request of another dialect from the attacker's queue, with parts of the victim's."""
    strings = [one for one in pool if type(one) is str]

    def text(own: str) -> str:
        return chosen.choice(strings) if chosen.random() < 0.4 else own

    lease, group = text(ids.token_uuid(at.token)), text("g")
    partition, message = text(str(pool[17])), text(at.id)
    ack = {"transactionId": message, "partitionId": partition, "leaseId": lease,
           "status": chosen.choice(["completed", "failed", "dlq", "retry", "rejected"])}  # fmt: skip
    item = {"queue": text("evil.q"), "partition": "p", "payload": 1, "transactionId": text("x")}
    cycle = {"query_id": text("q"), "partition_id": partition, "push_items": [item],
             "state_ops": [{"type": "upsert", "key": text("k"), "value": 1}],
             "ack": {"transactionId": message, "leaseId": lease}}  # fmt: skip
    queue = text("evil.q")
    listed: list[tuple[str, str, Any]] = [
        ("POST", "/api/v1/ack", ack), ("POST", "/api/v1/ack/batch", {"acknowledgments": [ack, ack]}),
        ("POST", "/api/v1/transaction", {"operations": [
            {"type": "push", "items": [item]}, {"type": "ack", **ack}], "requiredLeases": [lease]}),
        ("POST", f"/api/v1/lease/{lease}/extend", {}), ("POST", "/api/v1/push", {"items": [item]}),
        ("POST", "/streams/v1/queries", {"name": text("n"), "source_queue": queue,
                                         "config_hash": "z", "reset": True}),
        ("POST", "/streams/v1/state/get", {"query_id": text("q"), "partition_id": partition}),
        ("POST", "/streams/v1/cycle", cycle),
        ("POST", "/api/v1/traces", {"transactionId": message, "partitionId": partition, "data": 1}),
        ("GET", f"/api/v1/traces/{partition}/{message}", None), ("GET", "/api/v1/traces/names", None),
        ("GET", f"/api/v1/traces/by-name/{text('name')}", None),
        ("GET", f"/api/v1/messages/{partition}/{message}", None),
        ("DELETE", f"/api/v1/messages/{partition}/{message}", None),
        ("POST", f"/api/v1/messages/{partition}/{message}/retry", None),
        ("GET", f"/api/v1/messages?queue={queue}", None), ("GET", "/api/v1/messages", None),
        ("GET", f"/api/v1/dlq?queue={queue}", None), ("GET", "/api/v1/status", None),
        ("GET", "/metrics", None), ("GET", "/api/v1/consumer-groups", None),
        ("GET", f"/api/v1/consumer-groups/{group}", None), ("GET", "/api/v1/resources/overview", None),
        ("DELETE", f"/api/v1/consumer-groups/{group}?deleteMetadata=true", None),
        ("DELETE", f"/api/v1/consumer-groups/{group}/queues/{queue}", None),
        ("POST", f"/api/v1/consumer-groups/{group}/subscription", {"subscriptionTimestamp": "now"}),
        ("POST", f"/api/v1/consumer-groups/{group}/queues/{queue}/seek", {"toEnd": True}),
        ("DELETE", f"/api/v1/resources/queues/{queue}", None),
        ("DELETE", f"/api/v1/queues/{queue}/clear", None), ("POST", "/api/v1/configure", {"queue": queue}),
        ("GET", f"/api/v1/pop/queue/{queue}?consumerGroup={group}", None),
        ("GET", f"/api/v1/pop?task=&namespace={text('')}", None),
        ("POST", f"/queue/{queue}/pop?require_ack=true", None), ("GET", f"/queue/{queue}", None),
        *[("POST", f"/queue/{queue}/{verb}", {"lock_id": lease}) for verb in (
            "acknowledge", "release", "extend-lock", "deadletter")],
        ("POST", "/v1/upkeep", None), ("GET", "/api/v1/system/maintenance", None),
    ]  # fmt: skip
    return chosen.choice(listed)


def attack(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client, seed: int, calls: int
) -> Counter[int]:
    """Send so many calls; return how often each status was the answer."""
    statuses: Counter[int] = Counter()
    victim, at, evil = tenants
    chosen, names = random.Random(seed), sorted(VERBS)
    before, pool = victim.rows(), victim.pool
    assert all(before[table] for table in ("segments", "leases", "dead", "stages", "hands", "kv"))
    for number in range(calls):
        if number % 50 == 49:
            at = prepare(victim.session, "evil.q", "evil-")
        if chosen.random() < 0.6:
            verb = names[number % len(names)]
            packed = wire.write(arguments(verb, at), wire.MSGPACK)
            sample = own(msgspec.msgpack.decode(packed))
            sent: Any = verb, swap(sample, pool, chosen)
            answer = post(http, f"/v1/verbs/{verb}", (True, sent[1]), chosen.choice(evil))
        else:
            sent = method, path, body = routes(at, pool, chosen)
            answer = http.request(method, path, json=body, headers=chosen.choice(evil))
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (sent, answer.text)
        assert SECRET not in answer.text, (sent, answer.text)
        after = victim.rows()
        if after != before:
            changed = {
                name: (before[name], after[name]) for name in TABLES if before[name] != after[name]
            }
            raise AssertionError((sent, answer.status_code, answer.text, changed))
    return statuses


def test_a_tenant_changes_and_sees_nothing_of_another(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client
) -> None:
    statuses = attack(tenants, http, 1, 400)
    assert statuses[200] > 50
    assert statuses[403] > 100


def test_a_key_of_a_tenant_neither_blocks_nor_answers_a_push_of_another(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client
) -> None:
    """A key that is known with another body refuses a push; with the same body, it stores nothing."""
    victim, _, (evil, evil_admin, _) = tenants
    token = victim.session.broker.do(
        access_tokens.create, True, "mine", [access_tokens.grant("read-write:mine")], None
    )
    mine = {"authorization": f"Bearer {token}"}
    before = victim.session.queue_stats("mine").messages
    taken = PushRequest([chunk("evil.q")], key="order-2")
    assert post(http, "/v1/push", taken, evil).status_code == 200
    forged = TransactionRequest([], "order-3", b"x" * 16)
    assert post(http, "/v1/verbs/transact", (True, (forged,)), evil).status_code == 200
    push = PushRequest([chunk()], key="order-2")
    for _ in range(2):  # the repeat is answered with the first result
        assert post(http, "/v1/push", push, mine).status_code == 200
    both = TransactionRequest([PushOperation(PushRequest([chunk()]))], "order-3", b"x" * 16)
    for _ in range(2):
        (result,) = post(http, "/v1/verbs/transact", (True, (both,)), mine).json()
        assert result["places"]
    assert victim.session.queue_stats("mine").messages == before + 2
    other = PushRequest([chunk("evil.q"), chunk("evil.q")], key="order-2")
    assert post(http, "/v1/push", other, evil_admin).status_code == 409  # the same queues


def test_a_transaction_without_a_digest_is_compared_by_its_operations(
    served: Running, http: httpx.Client
) -> None:
    def push(count: int) -> TransactionRequest:
        return TransactionRequest([PushOperation(PushRequest([chunk()]))] * count, "once")

    codes = [
        post(http, "/v1/verbs/transact", (True, (push(n),)), {}).status_code for n in (1, 1, 2)
    ]
    assert codes == [200, 200, 409]


def test_a_batch_that_is_bound_to_the_query_of_another_is_refused(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client
) -> None:
    """It would be settled, or refused, with the batch of the other."""
    victim, at, (evil, *_) = tenants
    bound = "reader", victim.at.epoch, 0, victim.at.number, "spark-query", 7, "run"
    victim.session.broker.do(VERBS["bind_batch"].run, True, *bound)
    theirs = True, ("evil-reader", at.epoch, 0, at.number, "spark-query", 7, "run")
    refused = post(http, "/v1/verbs/bind_batch", theirs, evil)
    assert refused.status_code == 403
    assert "mine" not in refused.text  # nor is the queue named


def test_a_wide_pop_waits_with_a_token_for_some_queues(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client
) -> None:
    victim, _, (evil, *_) = tenants
    for queue in ("mine", "evil.q"):
        victim.session.configure(queue, namespace="shared")
    url = "/api/v1/pop?namespace=shared&wait=true&timeout=2000&batch=100&consumerGroup=wide"
    answer = http.get(url, headers=evil)
    assert answer.status_code == 200
    assert answer.json()["queue"] == "evil.q"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_that_tries_for_long_changes_and_sees_nothing_of_another(
    tenants: tuple[Victim, Place, list[dict[str, str]]], http: httpx.Client, seed: int
) -> None:
    print(attack(tenants, http, 100 + seed, 5_000))
