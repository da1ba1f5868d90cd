"""The dashboard's messages and dead letters: search, the fate of a message, export, a live tail."""

import asyncio
import time
from typing import Any

import msgspec
from msgspec import structs

from ...broker.core.by_hand.dead_select import DeadSelection, oldest
from ...broker.core.by_hand.dead_select import page as dead_page
from ...broker.views import peek
from ...broker.views.dead_groups import DeadGroups, dead_groups
from ...broker.views.fate import Fate, fate, kept_message, queue_of_message, refresh_groups
from ...broker.views.search import Found, Search, search
from ...broker.views.why import drop_overdue
from ...errors import InvalidArgument, NotFound
from ...model import News
from ...options import MAX_PAGE_BYTES
from ..http import Call, Param, Response, json
from .responses import (
    AFTER,
    ANY,
    GROUP,
    LIMIT,
    LONG,
    MOST_PAGE,
    NUMBER,
    QUEUE,
    SECONDS,
    TAIL_MESSAGES,
    TAIL_PAUSE,
    TAIL_SECONDS,
    DeadRows,
    Location,
    MessagePage,
    MessageRows,
    dead_row,
    look,
    look_at_payloads,
    message_row,
    optional,
    page_limit,
    read_route,
    seconds_of,
    snapshot_of,
    time_of,
)
from .tails import Positions

SNAPSHOT_SECONDS = 1.0  # of a search that takes longer


async def messages(call: Call) -> Response:
    """Search the stored messages of a queue. It stops at its time limit, and can be continued."""
    request = Search(
        queue=call.params["queue"], group=optional(call, "group"),
        state=call.query.get("state") or "all",  # type: ignore[arg-type]
        id=optional(call, "id"), transaction_id=optional(call, "transaction_id"),
        header=optional(call, "header"), text=optional(call, "text"),
        since=_time(call, "since"), until=_time(call, "until"),
        partition=optional(call, "partition"),
        priority=call.integer("priority", 0, 0, 1 << 31) if optional(call, "priority") else None,
        limit=page_limit(call, 50), seconds=seconds_of(call), after=optional(call, "after"),
    )  # fmt: skip
    request.check()
    if call.server.dashboard.masking and (request.text or request.header):
        raise InvalidArgument("masked fields could be guessed by searching; search by id or state")
    found = await _find(call, request)
    rows = [message_row(call, message) for message in found.items]
    return json(MessageRows(rows, found.next, found.scanned))


async def _find(call: Call, request: Search) -> Found:
    """Search in several snapshots: while one is read, the log of the database cannot be reused."""
    deadline = time.monotonic() + request.seconds
    found = Found([], request.after, 0)
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        page = structs.replace(
            request, limit=request.limit - len(found.items), after=found.next,
            seconds=min(left, SNAPSHOT_SECONDS),
        )  # fmt: skip
        some = await look_at_payloads(call, search, page)
        found = Found(found.items + some.items, some.next, found.scanned + some.scanned)
        size = sum(len(message.raw) for message in found.items)
        full = len(found.items) >= request.limit or size >= MAX_PAGE_BYTES
        if found.next is None or full or time.monotonic() > deadline:
            return found


def _time(call: Call, name: str) -> int | None:
    """A time in seconds since 1970, as microseconds."""
    given = optional(call, name)
    return None if given is None else time_of(given, name)


async def locate(call: Call) -> Response:
    """The queue of a message, by its id alone."""
    id = call.query.get("id", "")
    found = await look(call, queue_of_message, id)
    if not call.server.may_see(call, found):  # ids can be counted up; the name is not for all
        raise NotFound(f"there is no message {id}")
    return json(Location(found))


async def message(call: Call) -> Response:
    """A message, an explanation of its state in every group, and its history."""
    queue, id = call.params["queue"], call.params["id"]
    server, group = call.server, optional(call, "group")
    # Of this queue only: leases of very many others may be over at the same time.
    while await server.do(refresh_groups, False, queue, id, group):
        pass
    while await server.do(drop_overdue, False, queue, id, group):
        pass
    found: Fate = await look_at_payloads(call, fate, queue, id, group)
    row = None if found.message is None else message_row(call, found.message, LONG)
    return json(MessagePage(row, found.stored, found.groups, found.more_groups))


async def payload(call: Call) -> Response:
    """The whole payload of a message, as a file."""
    found = await look_at_payloads(call, kept_message, call.params["queue"], call.params["id"])
    masking = call.server.dashboard.masking
    if masking and not found.is_json:
        raise InvalidArgument("the payload is not JSON, so its fields cannot be masked")
    raw = masking.payload(found.raw) if found.is_json else found.raw
    name = f"{found.id}.{'json' if found.is_json else 'bin'}".encode()
    return Response(
        200, raw, b"application/json" if found.is_json else b"application/octet-stream",
        ((b"content-disposition", b'attachment; filename="%b"' % name),
         (b"x-content-type-options", b"nosniff")),
    )  # fmt: skip


async def dead_by_error(call: Call) -> Response:
    """Dead letters of one or all queues, counted by normalised error, newest first."""
    name = optional(call, "queue")
    if name is not None:
        call.server.allow(call, name)
    before = call.integer("before", 0, 0, 1 << 60) if optional(call, "before") else None
    limit = call.integer("limit", 100_000, 1, 1_000_000)
    kept, snapshot = call.server.dashboard.kept, await snapshot_of(call)
    key = name, before, seconds_of(call), limit
    found = kept.dead(key, snapshot)
    if found is None:
        began = time.monotonic()
        found = await look(call, dead_groups, name, before, seconds_of(call) / 2, limit)
        kept.keep_dead(key, snapshot, found, time.monotonic() - began)
    items = [one for one in found.items if call.server.may_see(call, one.queue)]
    return json(DeadGroups(items, found.scanned, found.next))


async def dead(call: Call) -> Response:
    """A page of the dead letters of a queue: newest first, or those with one error, oldest first."""
    name = call.params["queue"]
    limit = page_limit(call, 50)
    after = call.integer("after", 0, 0, 1 << 60)
    chosen = _chosen(call, name)
    found, more = await look_at_payloads(call, dead_page, chosen, after, limit, seconds_of(call))
    return json(DeadRows([dead_row(call, letter) for letter in found], more))


def _chosen(call: Call, queue: str) -> DeadSelection:
    chosen = DeadSelection(queue=queue, group=optional(call, "group"), kind=optional(call, "kind"),
                           error=optional(call, "error"))  # fmt: skip
    chosen.check()
    return chosen


async def export(call: Call) -> Response:
    """Dead letters as JSON lines, at most 1,000 in one answer; the header `x-next` continues."""
    chosen = _chosen(call, call.params["queue"])
    after, limit = call.integer("after", 0, 0, 1 << 60), page_limit(call, MOST_PAGE)
    found, more = await look_at_payloads(call, oldest, chosen, after, limit, seconds_of(call))
    masking = call.server.dashboard.masking
    lines = []
    for letter in found:
        data: Any = msgspec.Raw(masking.payload(letter.raw)) if letter.is_json else letter.raw
        if masking and not letter.is_json:
            data = None
        lines.append(msgspec.json.encode({
            "id": letter.id, "message_id": letter.message_id, "queue": letter.queue,
            "group": letter.group, "partition": letter.partition, "priority": letter.priority,
            "kind": letter.kind, "reason": letter.reason, "error": letter.error,
            "deliveries": letter.deliveries, "failures": letter.failures,
            "created_at": letter.created_at, "died_at": letter.died_at,
            "transaction_id": letter.transaction_id, "headers": masking.headers(letter.headers),
            "data": data,
        }))  # fmt: skip
    headers = ((b"x-next", str(more).encode()),) if more is not None else ()
    return Response(200, b"".join(line + b"\n" for line in lines), b"application/x-ndjson", headers)


async def tail(call: Call) -> Response:
    """New messages as server-sent events.

    Each answer is complete and ends; the browser asks again with the id of the last event. So it
    works behind proxies that hold back what has not ended.
    """
    tails = call.server.dashboard.tails
    after = tails.after(call.header(b"last-event-id") or call.query.get("from", ""))
    partition, last = optional(call, "partition"), call.integer("last", 20, 0, 200)
    with tails.following():
        news = await _news(call, partition, after, last)
    key = tails.keep(news.after)
    rows = msgspec.json.encode([message_row(call, one) for one in news.items])
    body = b"retry: 100\nid: %b\nevent: messages\ndata: %b\n\n" % (key.encode(), rows)
    return Response(200, body, b"text/event-stream", ((b"cache-control", b"no-store"),))


async def _news(call: Call, partition: str | None, after: Positions | None, last: int) -> News:
    """The messages pushed after these positions; without positions, the last messages."""
    until, gone = time.monotonic() + TAIL_SECONDS, False

    def disconnected() -> None:
        nonlocal gone
        gone = True

    call.long_poll, call.on_disconnect = True, disconnected
    while True:
        started = time.monotonic()
        news: News = await look_at_payloads(
            call, peek.follow, call.params["queue"], partition, after, last, TAIL_MESSAGES
        )
        first, after = after is None, news.after
        ended = gone or call.server.closing or time.monotonic() > until
        if news.items or first or ended:
            return news
        await asyncio.sleep(max(TAIL_PAUSE, 10 * (time.monotonic() - started)))


DEAD = (GROUP, Param("kind", ANY, "Only of this kind"),
        Param("error", ANY, "Only with this normalised error"))  # fmt: skip


ROUTES = (
    read_route("/v1/locate", locate, "Find the queue of a message", Location,
               Param("id", ANY, "The id of a message"), checks_queues=True),
    read_route("/v1/queues/{queue}/messages", messages, "Search messages", MessageRows, GROUP,
         Param("state", {"enum": ["all", "ready", "leased", "waiting", "settled"]}),
         Param("id", ANY, "An id or a part of one"), Param("transaction_id", ANY, "A part of it"),
         Param("header", ANY, "name, or name=part of the value"),
         Param("text", ANY, "A part of the payload"), Param("since", {"type": "number"}),
         Param("until", {"type": "number"}), Param("partition", ANY), Param("priority", NUMBER),
         LIMIT, Param("after", ANY, "The `next` of the previous page"), SECONDS),
    read_route("/v1/queues/{queue}/messages/{id}", message, "Show a message and its fate", MessagePage,
         GROUP),
    read_route("/v1/queues/{queue}/messages/{id}/payload", payload, "Download a payload", "*/*"),
    read_route("/v1/queues/{queue}/tail", tail, "Follow new messages as server-sent events",
         "text/event-stream", Param("partition", ANY), Param("last", NUMBER, "Earlier messages"),
         Param("from", ANY, "The id of the last event, after which to continue")),
    read_route("/v1/dead", dead_by_error, "Dead letters by error", DeadGroups, QUEUE,
         Param("before", NUMBER, "The `next` of the previous page"),
         Param("limit", NUMBER, "Dead letters to read"), SECONDS, checks_queues=True),
    read_route("/v1/queues/{queue}/dead", dead, "List dead letters", DeadRows, *DEAD, LIMIT, AFTER, SECONDS),
    read_route("/v1/queues/{queue}/dead/export", export, "Export dead letters as JSON lines",
         "application/x-ndjson", *DEAD, LIMIT, AFTER, SECONDS),
)  # fmt: skip
