"""The audit: a record of every change, with the user, the time and the address. A row is added in the transaction of the change.

Messages are not listed: a push, pop or settle by a program leaves no row. One that a person makes by
hand does.
"""

import getpass
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import msgspec
from msgspec import Struct, structs

from ..clock import micros
from ..model import when
from ..store.tx import Tx
from .access_tokens import Token
from .reach import merging
from .reach.merging import Several
from .requests import DeadFilter
from .verb import BY_FUNCTION, verb

KEPT_SECONDS = 400 * 86_400
MOST_ROWS = 100_000
CLEAN_EVERY = 100  # rows
MOST_TEXT = 200
LAST = 1 << 62
# Verbs that administrate, by name; programs call them as well, such as `configure` when they start.
ADMINISTRATION = {
    "configure": "configure", "configure_group": "configure group", "pause": "pause", "seek": "seek",
    "purge": "purge", "delete_queue": "delete queue", "delete_copied": "delete queue",
    "delete_group": "delete group", "delete_message": "delete message", "redrive": "redrive", "purge_dead": "purge dead letters",
    "settle_message": "settle", "release_lease": "release lease", "extend_lease": "extend lease",
}  # fmt: skip
# Verbs on access tokens, which only the machine of the database may call.
OF_TOKENS = {"token_create": "create token", "token_revoke": "revoke token"}
CLI = "cli"  # in place of an address


class Actor(Struct, frozen=True):
    """The author of a change: the name of a token, empty if none was required, and an address."""

    name: str
    origin: str

    @staticmethod
    def of(who: Token | None, client: tuple[str, int]) -> "Actor":
        return Actor("" if who is None else who.name, client[0])

    @staticmethod
    def local_user() -> "Actor":
        """The user of the command line, on the machine of the database."""
        try:
            return Actor(getpass.getuser(), CLI)
        except (OSError, KeyError):  # the user id has no name
            return Actor("", CLI)


class AuditEntry(Struct, frozen=True):
    """One change."""

    id: int
    at: Any
    who: str
    origin: str
    action: str
    queue: str | None
    details: dict[str, Any]


def record(tx: Tx, actor: Actor, action: str, queue: str | None, details: dict[str, Any]) -> None:
    """Add a row, and drop those that are too old or too many."""
    short = {name: _short(value) for name, value in details.items() if value is not None}
    packed = msgspec.json.encode(short).decode()
    id = tx.insert("add_audit", tx.now, actor.name, actor.origin, action, queue, packed)
    if id % CLEAN_EVERY == 0:
        tx.all("drop_audit", tx.now - micros(KEPT_SECONDS), id - MOST_ROWS, 2 * CLEAN_EVERY)


def audited(
    run: Callable[..., Any], actor: Actor, action: str, queue: str | None, details: dict[str, Any]
) -> Callable[..., Any]:
    """A verb that records itself in its own transaction, unless it is refused."""

    @wraps(run)  # so that a router of several databases finds the facts of the verb
    def recorded(tx: Tx, *arguments: Any) -> Any:
        result = run(tx, *arguments)
        record(tx, actor, action, queue, details)
        return result

    return recorded


@verb("read-write", name="record_of_queue", queue="queue", synced=True, wire=False)
def record_of_queue(tx: Tx, queue: str, actor: Actor, action: str, details: dict[str, Any]) -> None:
    """Add a row about a change of a queue that is made already."""
    record(tx, actor, action, queue, details)


@verb("read-write", name="record_of_none", synced=True, wire=False, home=True)
def record_of_none(tx: Tx, actor: Actor, action: str, details: dict[str, Any]) -> None:
    """Add a row about a change of something that belongs to no queue."""
    record(tx, actor, action, None, details)


def step(
    run: Callable[..., Any], actor: Actor, action: str, queue: str, details: dict[str, Any]
) -> Callable[..., Any]:
    """A step over some dead letters that records itself, if it changed any."""

    @wraps(run)
    def recorded(tx: Tx, *arguments: Any) -> Any:
        result = run(tx, *arguments)
        if result.done:
            record(tx, actor, action, queue, {**details, "done": result.done})
        return result

    return recorded


def audit_calls(broker: Any, actor: Actor) -> None:
    """Make the administrative verbs of a broker in this process record themselves, for one actor."""
    plain = broker.do

    def do(run: Callable[..., Any], synced: bool, *args: Any, **kwargs: Any) -> Any:
        facts = BY_FUNCTION.get(run)
        if facts is not None and facts.name in ADMINISTRATION:
            if facts.in_slices:
                broker.catch_up()
            arguments = facts.complete(args, kwargs)
            return plain(of_verb(run, facts.name, actor, arguments), synced, *arguments)
        if facts is not None and facts.name in OF_TOKENS:
            action = OF_TOKENS[facts.name]
            run = audited(run, actor, action, None, {"name": args[0]})
        return plain(run, synced, *args, **kwargs)

    broker.do = do


def of_verb(
    run: Callable[..., Any], name: str, actor: Actor, arguments: tuple[Any, ...]
) -> Callable[..., Any]:
    """An administrative verb that records itself, unless it finds everything as it should be."""
    first = arguments[0]
    queue = first if isinstance(first, str) else first.queue
    action = "resume" if name == "pause" and not arguments[2] else ADMINISTRATION[name]
    plain = [one for one in arguments[1:] if isinstance(one, str | int | float | dict)]
    details: dict[str, Any] = {"arguments": plain} if plain else {}
    if isinstance(first, DeadFilter):
        details |= {
            "group": first.group,
            "kind": first.kind,
            "error": first.error,
            "ids": first.ids,
        }

    @wraps(run)
    def recorded(tx: Tx, *given: Any) -> Any:
        before = _options(tx, given) if name.startswith("configure") else None
        result = run(tx, *given)
        if before is None or before != _options(tx, given):
            record(tx, actor, action, queue, details)
        return result

    return recorded


def _options(tx: Tx, given: tuple[Any, ...]) -> tuple[Any, Any]:
    """What a program configures again each time it starts: the options of a queue and a group."""
    queue = tx.queue(given[0])
    group = tx.group(queue.id, given[1]) if queue and isinstance(given[1], str) else None
    return queue.options if queue else None, group.options if group else None


def _newest(
    ask: merging.Ask, tags: Sequence[int], arguments: merging.Arguments
) -> list[AuditEntry]:
    """The newest changes of several databases; an id has the place of its database."""
    limit = arguments[1]
    ordered = sorted(tags)
    found = [
        one for place in range(len(ordered)) for one in _placed(ask, ordered, place, *arguments)
    ]
    found.sort(key=lambda one: (one.at, one.id), reverse=True)
    return found[:limit]


def _placed(
    ask: merging.Ask, ordered: Sequence[int], place: int, before: int | None, limit: int
) -> Iterator[AuditEntry]:
    """The newest rows of one database that come after the row `before`, which another may have."""
    edge = None
    if before is not None:
        home, row = divmod(before, 1 << merging.PLACE_BITS)
        if home >= len(ordered):
            return
        edge = next(iter(ask(ordered[home], (row + 1, 1))), None)
        if edge is None:
            return
    top, left = None, limit
    while left > 0:
        page = ask(ordered[place], (top, limit))
        for one in page:
            id = merging.placed(place, one.id)
            if edge is None or (one.at, id) < (edge.at, before):
                left -= 1
                yield structs.replace(one, id=id)
        if len(page) < limit:
            return
        top = page[-1].id


@verb("admin", name="audit", read_only=True, wire=False, several=Several(run=_newest))
def entries(tx: Tx, before: int | None, limit: int) -> list[AuditEntry]:
    """Return a page, the newest first."""
    return [
        AuditEntry(id, when(at), who, origin, action, queue, msgspec.json.decode(details))
        for id, at, who, origin, action, queue, details in tx.all(
            "audit_page", LAST if before is None else before, limit
        )
    ]


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return value[:MOST_TEXT] + "…"
    if isinstance(value, list) and len(value) > 20:
        return [*value[:20], f"and {len(value) - 20:,} more"]
    return value
