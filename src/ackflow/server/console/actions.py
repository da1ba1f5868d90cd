"""The changes that the dashboard makes. Each is one verb of the broker, and applies to the state then.

Each is recorded in the audit, in the transaction of the change. In read-only mode all are refused. Of
dead letters at most 1,000 are changed by one request; `next` continues.
"""

from typing import Any

from msgspec import Raw, Struct, field

from ... import ids, validate
from ...broker import access_tokens, audit
from ...broker.audit import Actor
from ...broker.core.admin import admin as verbs
from ...broker.core.by_hand import settling as by_hand
from ...broker.core.by_hand.dead_select import (
    MOST_STEP,
    DeadSelection,
    DeadStep,
    purge_step,
    redrive_step,
    select,
)
from ...broker.registry import BY_FUNCTION
from ...broker.requests import SettleVerb, Verdict
from ...errors import Forbidden, InvalidArgument
from ...model import when
from ...options import QUEUE_MODE
from ...session import encoding
from ...session.encoding import Item
from .. import authz
from ..http import Call, Response, Role, Route, empty, json
from .queues import SEEK, seek_target
from .responses import look
from .ui import TAG, check_page

MAX_DAYS = 100_000


class Pause(Struct):
    """Whether delivery is paused; with a group, that of the group only."""

    paused: bool
    group: str | None = None


class Options(Struct):
    """Options to set; others do not change."""

    options: dict[str, Any]


class Partition(Struct):
    partition: str | None = None


class NewMessage(Struct):
    """A message to push. `data` is any JSON value, kept byte for byte."""

    data: Raw
    partition: str | None = None
    priority: int | None = None
    delay: float | None = None
    transaction_id: str | None = None
    headers: dict[str, str] | None = None


class NewMessages(Struct):
    items: list[NewMessage]


class Pushed(Struct):
    """The ids of the messages, and which of them were known by their transaction id."""

    ids: list[str]


class Settle(Struct):
    """A verdict on one message of a group.

    `deliveries` is how many the caller saw; if there were more since, nothing is done.
    """

    verdict: SettleVerb
    group: str = QUEUE_MODE
    reason: str | None = None
    delay: float | None = None
    deliveries: int | None = None


class Done(Struct):
    """Whether something was changed, and on how many messages."""

    done: int


class Extend(Struct):
    seconds: float | None = None


class ExtendedLease(Struct):
    expires_at: Any


class DeadAction(Struct):
    """The dead letters to change, and at most how many in this step. `dry_run` changes nothing."""

    group: str | None = None
    kind: str | None = None
    error: str | None = None
    ids: list[int] | None = None
    to: str | None = None
    limit: int = MOST_STEP
    after: int = 0
    dry_run: bool = False


class NewToken(Struct):
    """A token: its name, and grants such as `read-write:orders.*`."""

    name: str
    grants: list[str] = field(default_factory=lambda: ["read-only"])
    days: float | None = None


class Secret(Struct):
    """A new token; it is not shown again."""

    name: str
    token: str


def check_change(call: Call) -> None:
    """Raise Forbidden if the dashboard is read-only, or the request comes from another page."""
    if call.server.dashboard.settings.read_only:
        raise Forbidden("the dashboard is read-only on this server")
    check_page(call)


def actor_of(call: Call) -> Actor:
    return Actor.of(call.who, call.client)


async def act(
    call: Call, action: str, verb: Any, *arguments: Any, queue: str | None = None, **details: Any
) -> Any:
    """Run a verb with the caller's rights, and record it."""
    check_change(call)
    found = BY_FUNCTION[verb]
    server = call.server
    server.require(call, found.role)
    queue = queue or call.params.get("queue")
    if queue is not None:
        server.allow(call, queue)
    found.check(arguments)
    allowed = authz.authorized(call, found, arguments)
    run = audit.audited(allowed, actor_of(call), action, queue, details)
    if found.in_slices:
        result = await server.do_in_slices(run, *arguments)
    else:
        result = await server.do(run, True, *arguments)
    server.dashboard.kept.changed()
    return result


async def pause(call: Call) -> Response:
    """Pause or resume delivery."""
    body = call.json_body(Pause)
    action = "pause" if body.paused else "resume"
    arguments = call.params["queue"], body.group, body.paused
    await act(call, action, verbs.pause, *arguments, group=body.group)
    return json(Done(1))


async def configure(call: Call) -> Response:
    """Create a queue, or change its options."""
    changes = call.json_body(Options).options
    await act(call, "configure", verbs.configure, call.params["queue"], dict(changes), "native",
              options=changes)  # fmt: skip
    return json(Done(len(changes)))


async def configure_group(call: Call) -> Response:
    """Create a group, or change its options."""
    changes = call.json_body(Options).options
    queue, group = call.params["queue"], call.params["group"]
    await act(call, "configure group", verbs.configure_group, queue, group, dict(changes), None,
              group=group, options=changes)  # fmt: skip
    return json(Done(len(changes)))


async def seek(call: Call) -> Response:
    """Move a group; its leases there end."""
    queue, group, to, is_time, partition = seek_target(call)
    await act(call, "seek", verbs.seek, queue, group, to, is_time, partition,
              group=group, to=call.query.get("to"), partition=partition)  # fmt: skip
    return json(Done(1))


async def purge(call: Call) -> Response:
    """Remove every message of a queue or partition; dead letters stay."""
    partition = call.json_body(Partition).partition
    queue = call.params["queue"]
    n = await act(call, "purge", verbs.purge, queue, partition, partition=partition)
    return json(Done(n))


async def delete_queue(call: Call) -> Response:
    """Delete a queue with its messages, groups and dead letters."""
    return json(Done(await act(call, "delete queue", verbs.delete_queue, call.params["queue"])))


async def delete_group(call: Call) -> Response:
    """Delete a group with its dead letters."""
    queue, group = call.params["queue"], call.params["group"]
    done = await act(call, "delete group", verbs.delete_group, queue, group, group=group)
    return json(Done(done))


async def push(call: Call) -> Response:
    """Push messages by hand; they are on disk when the answer is sent."""
    check_change(call)
    server, queue = call.server, call.params["queue"]
    items = call.json_body(NewMessages).items
    if not 1 <= len(items) <= 1_000:
        raise InvalidArgument(f"a push must have 1 to 1,000 messages, got {len(items):,}")
    request, _ = encoding.push_request_for_items([(queue, _item(one)) for one in items], "native")
    places = await server.loop_broker.push(request)
    details = {"messages": len(items)}
    await server.do(audit.record_of_queue, True, queue, actor_of(call), "push", details)
    store = server.broker.store.id
    found = [
        ids.message_id(one.store or store, one.lane, one.first + n)
        for chunk in places for one in chunk for n in range(one.stop - one.first)
    ]  # fmt: skip
    return json(Pushed(found))


def _item(one: NewMessage) -> Item:
    return Item(
        data=one.data, partition=one.partition, priority=one.priority, delay=one.delay,
        transaction_id=one.transaction_id, headers=one.headers,
    )  # fmt: skip


async def settle(call: Call) -> Response:
    """Settle one message by hand, even if a consumer holds it."""
    body, queue, id = call.json_body(Settle), call.params["queue"], call.params["id"]
    verdict = Verdict(body.verdict, body.reason, body.delay)
    action = "dead-letter" if body.verdict == "dead_letter" else body.verdict
    done = await act(call, action, by_hand.settle_message, queue, body.group, id, verdict,
                     body.deliveries, group=body.group, message=id, reason=body.reason)  # fmt: skip
    return json(Done(done))


async def delete_message(call: Call) -> Response:
    """Delete one message for every group that has not settled it."""
    queue, id = call.params["queue"], call.params["id"]
    done = await act(call, "delete message", verbs.delete_message, queue, id, message=id)
    return json(Done(done))


async def release(call: Call) -> Response:
    """Return all messages of a lease to its group."""
    token = ids.parse_token(call.params["token"])
    queue = call.params["queue"]
    n = await act(call, "release lease", by_hand.release_lease, queue, token,
                  token=call.params["token"])  # fmt: skip
    return json(Done(n))


async def extend(call: Call) -> Response:
    """Extend a lease by the lease time of its group, or by the given seconds."""
    token, seconds = ids.parse_token(call.params["token"]), call.json_body(Extend).seconds
    until = await act(call, "extend lease", by_hand.extend_lease, call.params["queue"], token,
                      seconds, token=call.params["token"], seconds=seconds)  # fmt: skip
    return json(ExtendedLease(when(until)))


def _selection(call: Call, body: DeadAction) -> tuple[DeadSelection, dict[str, Any]]:
    chosen = DeadSelection(queue=call.params["queue"], group=body.group, kind=body.kind,
                           error=body.error, ids=body.ids)  # fmt: skip
    chosen.check()
    if not 1 <= body.limit <= MOST_STEP:
        raise InvalidArgument(f"limit must be an integer from 1 to {MOST_STEP:,}")
    validate.integer(body.after, "after", 0, 1 << 62)
    details = {"group": body.group, "kind": body.kind, "error": body.error, "ids": body.ids}
    return chosen, details


async def redrive(call: Call) -> Response:
    """Send dead letters back to their group, or to another queue, in one step."""
    body = call.json_body(DeadAction)
    chosen, details = _selection(call, body)
    if body.dry_run:
        return json(await look(call, select, chosen, body.after, body.limit, 1.0))
    if body.to is not None:
        call.server.allow(call, body.to)
    return json(await _step(call, "redrive", redrive_step, chosen, body, details, body.to))


async def purge_dead(call: Call) -> Response:
    """Delete dead letters permanently, in one step."""
    body = call.json_body(DeadAction)
    chosen, details = _selection(call, body)
    if body.dry_run:
        return json(await look(call, select, chosen, body.after, body.limit, 1.0))
    return json(await _step(call, "purge dead letters", purge_step, chosen, body, details))


async def _step(
    call: Call, action: str, step: Any, chosen: DeadSelection, body: DeadAction,
    details: dict[str, Any], *more: Any,
) -> DeadStep:  # fmt: skip
    check_change(call)
    run = audit.step(step, actor_of(call), action, chosen.queue, {**details, "to": body.to})
    done: DeadStep = await call.server.do(run, True, chosen, body.after, body.limit, *more)
    call.server.dashboard.kept.changed()
    return done


async def create_token(call: Call) -> Response:
    """Create a token; the answer is the only one that shows it."""
    check_change(call)
    body = call.json_body(NewToken)
    grants = [access_tokens.grant(text) for text in body.grants]
    if body.days is not None and not 0 < body.days <= MAX_DAYS:
        raise InvalidArgument(f"days must be more than 0 and at most {MAX_DAYS:,}")
    seconds = None if body.days is None else body.days * 86_400.0
    details = {"name": body.name, "grants": body.grants}
    run = audit.audited(access_tokens.create, actor_of(call), "create token", None, details)
    return json(Secret(body.name, await call.server.do(run, True, body.name, grants, seconds)))


async def revoke_token(call: Call) -> Response:
    """Revoke a token; its sessions and connections end within a second."""
    check_change(call)
    name = call.params["name"]
    details = {"name": name}
    run = audit.audited(access_tokens.revoke, actor_of(call), "revoke token", None, details)
    await call.server.do(run, True, name)
    return empty()


def _route(
    method: str, path: str, handler: Any, summary: str, body: Any, answer: Any,
    role: Role = "read-write", **more: Any,
) -> Route:  # fmt: skip
    responses = {204: None} if answer is None else {200: answer}
    return Route(method, path, handler, role, tag=TAG, summary=summary, body=body,
                 responses=responses, cookies=True, **more)  # fmt: skip


GROUP = "/v1/queues/{queue}/groups/{group}"
MESSAGE = "/v1/queues/{queue}/messages/{id}"
LEASE = "/v1/queues/{queue}/leases/{token}"
ROUTES = (
    _route("POST", "/v1/queues/{queue}/pause", pause, "Pause or resume delivery", Pause, Done),
    _route("PATCH", "/v1/queues/{queue}", configure, "Create or configure a queue", Options, Done),
    _route("DELETE", "/v1/queues/{queue}", delete_queue, "Delete a queue", None, Done, "admin"),
    _route("POST", "/v1/queues/{queue}/purge", purge, "Remove all messages", Partition, Done, "admin"),
    _route("PATCH", GROUP, configure_group, "Create or configure a group", Options, Done),
    _route("DELETE", GROUP, delete_group, "Delete a group", None, Done, "admin"),
    _route("POST", f"{GROUP}/seek", seek, "Move a group", None, Done, query=SEEK),
    _route("POST", "/v1/queues/{queue}/messages", push, "Push messages", NewMessages, Pushed),
    _route("POST", f"{MESSAGE}/settle", settle, "Settle a message by hand", Settle, Done),
    _route("DELETE", MESSAGE, delete_message, "Delete a message", None, Done),
    _route("POST", f"{LEASE}/release", release, "Release a lease", None, Done),
    _route("POST", f"{LEASE}/extend", extend, "Extend a lease", Extend, ExtendedLease),
    _route("POST", "/v1/queues/{queue}/dead/redrive", redrive, "Redrive dead letters", DeadAction,
           DeadStep),
    _route("POST", "/v1/queues/{queue}/dead/purge", purge_dead, "Delete dead letters", DeadAction,
           DeadStep, "admin"),
    _route("POST", "/v1/tokens", create_token, "Create a token", NewToken, Secret, "admin"),
    _route("DELETE", "/v1/tokens/{name}", revoke_token, "Revoke a token", None, None, "admin"),
)  # fmt: skip
