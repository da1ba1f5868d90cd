"""How a verb works over several databases: facts that `@verb` carries, and the merging of answers.

A verb that touches one queue, lease or reader runs on the database that has it, and needs none of
this. The facts are for verbs whose answer comes from several: from all databases, or from those over
which the partitions of a queue are spread. Ids of rows are numbers that each database gives anew, so
that an answer from several carries them together with a tag, which is a part of the store's id.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import structs

from ...errors import InvalidArgument
from ...model import Counts, DeadLetter, DeadSummary, GroupStats, News, Page, QueueStats, Value
from ..requests import BrowseRequest, DeadFilter

T = TypeVar("T")
Arguments = tuple[Any, ...]
Ask = Callable[[int, Arguments], Any]  # run the verb on the database with this tag

ROW_BITS = 34
TAG_BITS = 24  # a tagged id has at most 18 digits
_ROW = (1 << ROW_BITS) - 1


def tag_of(store: int) -> int:
    """Return the tag of a database. It is never 0, which is the tag of an id without one."""
    return store % ((1 << TAG_BITS) - 1) + 1


def tagged(tag: int, row: int) -> int:
    return tag << ROW_BITS | row


def combined(answers: Sequence[Any], _: Arguments = ()) -> Any:
    """Join lists, add numbers, or flags; of other answers, which are equal, take the first."""
    first = answers[0]
    if isinstance(first, bool):
        return any(answers)
    if isinstance(first, int | float):
        return sum(answers)
    if isinstance(first, list):
        return [item for answer in answers for item in answer]
    return first


def everywhere(
    ask: Ask, tags: Sequence[int], arguments: Arguments, merge: Callable[..., Any] = combined
) -> Any:
    """Run a verb on every database and merge the answers."""
    return merge([ask(tag, arguments) for tag in tags], arguments)


@dataclass(frozen=True, slots=True)
class Several:
    """The facts of a verb for several databases.

    `message`: the parameter with the id of a message, which says where it is. `merge`: makes one
    answer of several. `run`: in place of `merge`, runs the verb over several databases itself.
    `divide`: splits the arguments by the place of each lease; without it, a call is refused whose
    leases are in different databases. `spread`: the parameter with changes of a queue, among which
    may be the option `spread`. `away`: its answer lists the databases that are away too.
    `one`: it is refused on a queue that is in several.
    """

    message: str = ""
    merge: Callable[[Sequence[Any], Arguments], Any] = combined
    run: Callable[[Ask, Sequence[int], Arguments], Any] | None = None
    divide: "Divide | None" = None
    spread: str = ""
    away: bool = False
    one: bool = False


@dataclass(frozen=True, slots=True)
class Divide:
    """`check` raises if a call must not be divided; `join` puts the answers into the order of the
    call, given those of each database and which tokens were sent there."""

    check: Callable[[Arguments], None]
    join: Callable[[Arguments, list[tuple[set[int], Any]]], Any]


PLAIN = Several()


def _refuse_atomic(arguments: Arguments) -> None:
    if arguments[1]:
        raise InvalidArgument(
            "the messages are in several databases, and an atomic settle works inside one"
        )


def _by_token(arguments: Arguments, answers: list[tuple[set[int], Any]]) -> list[Any]:
    found: list[Any] = []
    outcomes = [(tokens, iter(answer)) for tokens, answer in answers]
    for token, marks in arguments[0].items():
        mine = next(answer for tokens, answer in outcomes if token in tokens)
        found += [next(mine) for _ in marks]
    return found


BY_TOKEN = Divide(_refuse_atomic, _by_token)  # a dictionary by token, with an outcome for each mark

# merges of answers


def largest(answers: Sequence[int], _: Arguments) -> int:
    return max(answers)


def some(answers: Sequence[T | None], _: Arguments) -> T | None:
    """The newest answer that is not None: of a value that several databases have."""
    found = [answer for answer in answers if answer is not None]
    return max(found, key=lambda one: getattr(one, "updated_at", 0), default=None)


def values(answers: Sequence[list[Value]], arguments: Arguments) -> list[Value]:
    _, limit, _, reverse = arguments
    newest: dict[str, Value] = {}
    for value in combined(answers):
        if value.key not in newest or newest[value.key].updated_at < value.updated_at:
            newest[value.key] = value
    return sorted(newest.values(), key=lambda value: value.key, reverse=bool(reverse))[:limit]


def _counts(all: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*map(structs.astuple, all), strict=True)))


def group_stats(answers: Sequence[GroupStats], _: Arguments = ()) -> GroupStats:
    oldest = [one.oldest_seconds for one in answers if one.oldest_seconds is not None]
    return structs.replace(
        answers[0],
        created_at=min(one.created_at for one in answers),
        paused=all(one.paused for one in answers),
        counts=_counts(one.counts for one in answers),
        oldest_seconds=max(oldest, default=None),
        **{name: sum(getattr(one, name) for one in answers)
           for name in ("dead_letters", "consumed", "failed", "delivered")},
    )  # fmt: skip


def queue_stats(answers: Sequence[QueueStats], _: Arguments = ()) -> QueueStats:
    groups: dict[str, list[GroupStats]] = {}
    for group in (group for one in answers for group in one.groups):
        groups.setdefault(group.name, []).append(group)
    return structs.replace(
        answers[0],
        created_at=min(one.created_at for one in answers),
        paused=all(one.paused for one in answers),
        groups=[_with_unread(group_stats(of), answers) for of in groups.values()],
        **{name: sum(getattr(one, name) for one in answers)
           for name in ("partitions", "messages", "bytes", "dead_letters")},
    )  # fmt: skip


def _with_unread(group: GroupStats, answers: Sequence[QueueStats]) -> GroupStats:
    """Add what lies where the group has not popped yet: it is ready for it there."""
    unread = sum(
        one.messages for one in answers if group.name not in [found.name for found in one.groups]
    )
    return structs.replace(
        group, counts=structs.replace(group.counts, ready=group.counts.ready + unread)
    )


def queues(answers: Sequence[list[QueueStats]], _: Arguments) -> list[QueueStats]:
    by_name: dict[str, list[QueueStats]] = {}
    for one in combined(answers):
        by_name.setdefault(one.name, []).append(one)
    return [some[0] if len(some) == 1 else queue_stats(some) for _, some in sorted(by_name.items())]


def limited(answers: Sequence[list[T]], arguments: Arguments) -> list[T]:
    """Join lists up to the limit, which is the last argument."""
    found: list[T] = combined(answers)
    return found[: arguments[-1]]


def dead_summary(answers: Sequence[list[DeadSummary]], _: Arguments) -> list[DeadSummary]:
    lines: dict[tuple[str, str, str], DeadSummary] = {}
    for line in combined(answers):
        key = line.group, line.kind, line.error
        if (known := lines.get(key)) is not None:
            line = structs.replace(
                line, count=line.count + known.count, first_at=min(line.first_at, known.first_at),
                last_at=max(line.last_at, known.last_at),
            )  # fmt: skip
        lines[key] = line
    return sorted(lines.values(), key=lambda line: (-line.count, line.error))


# verbs that name rows by number, or return pages

PLACE_BITS = 40  # a position that browsers see must fit into 53 bits, and a tag is too large
PLACE = (1 << PLACE_BITS) - 1


def placed(place: int, row: int) -> int:
    """A position of a page: the database by its place in the order of the tags, and a row there."""
    return place << PLACE_BITS | row


def one_after_another(
    ask: Ask, tags: Sequence[int], arguments: Arguments, after: int, limit: int
) -> Any:
    """Return pages of one database after the other, in ascending order. `after` and `limit` are the
    places of these arguments; the answer has `items` and `next`."""
    start, given = divmod(arguments[after], 1 << PLACE_BITS)
    items: list[Any] = []
    ordered = sorted(tags)
    page = None
    for place, tag in enumerate(ordered):
        if place < start:
            continue
        asked = list(arguments)
        asked[after] = given if place == start else 0
        asked[limit] = arguments[limit] - len(items)
        page = ask(tag, tuple(asked))
        items += page.items
        if page.next is not None:
            return structs.replace(page, items=items, next=placed(place, page.next))
        if len(items) >= arguments[limit] and place + 1 < len(ordered):
            return structs.replace(page, items=items, next=placed(place + 1, 0))
    if page is None:
        raise InvalidArgument("after must be the `next` of the previous page")
    return structs.replace(page, items=items)


def browse(ask: Ask, tags: Sequence[int], arguments: Arguments) -> Page[Any]:
    """Browse one database after the other; a position is tagged with its database."""
    (request,) = arguments
    assert isinstance(request, BrowseRequest)
    lane, at = request.after or (0, 0)
    found: list[Any] = []
    rest = [tag for tag in sorted(tags) if tag >= lane >> ROW_BITS]
    for number, tag in enumerate(rest):
        after = (lane & _ROW, at) if tag == lane >> ROW_BITS else None
        asked = structs.replace(request, after=after, limit=request.limit - len(found))
        page = ask(tag, (asked,))
        found += page.items
        if page.next is not None:
            row, at = map(int, page.next.split("."))
            return Page(found, f"{tagged(tag, row)}.{at}")
        if len(found) >= request.limit and number + 1 < len(rest):
            return Page(found, f"{tagged(rest[number + 1], 0)}.0")
    return Page(found)


def follow(ask: Ask, tags: Sequence[int], arguments: Arguments) -> News:
    """Follow every database; positions are tagged with the database of the lane."""
    queue, partition, after, last, limit = arguments
    items: list[Any] = []
    places: dict[int, int] = dict(after or {})
    for tag in sorted(tags):
        mine = {lane & _ROW: at for lane, at in places.items() if lane >> ROW_BITS == tag}
        room = limit - len(items)
        if room <= 0:
            break
        asked = (queue, partition, None if after is None else mine, last, room)
        news = ask(tag, asked)
        items += news.items
        places.update({tagged(tag, lane): at for lane, at in news.after.items()})
    items.sort(key=lambda message: message.created_at)
    return News(items[-last:] if after is None and last else items, places)


def _of(which: DeadFilter, tag: int) -> DeadFilter:
    """The filter for one database: with the ids of rows there."""
    if which.ids is None:
        return which
    return structs.replace(which, ids=[id & _ROW for id in which.ids if id >> ROW_BITS == tag])


def dead_page(ask: Ask, tags: Sequence[int], arguments: Arguments) -> Page[DeadLetter]:
    """Return dead letters of one database after the other, the newest of each first."""
    which, limit, offset, before = arguments
    found: list[DeadLetter] = []
    total, next = 0, None
    for tag in sorted(tags, reverse=True):
        top = None
        if before is not None:
            if tag > before >> ROW_BITS:
                total += ask(tag, (_of(which, tag), 1, 0, None)).total
                continue
            top = before & _ROW if tag == before >> ROW_BITS else None
        room = limit - len(found)
        if room <= 0 or next is not None:  # the page is full, and this database may have more
            if next is None:
                next = str(tagged(tag, _ROW))
            total += ask(tag, (_of(which, tag), 1, 0, None)).total
            continue
        page = ask(tag, (_of(which, tag), room, offset, top))
        found += [structs.replace(one, id=tagged(tag, one.id)) for one in page.items]
        offset = max(0, offset - page.total)
        total += page.total
        if page.next is not None:
            next = str(tagged(tag, int(page.next)))
    return Page(found, next, total)


def dead_count(ask: Ask, tags: Sequence[int], arguments: Arguments) -> int:
    (which,) = arguments
    return sum(ask(tag, (_of(which, tag),)) for tag in tags)


def dead_ids(ask: Ask, tags: Sequence[int], arguments: Arguments) -> list[int]:
    """Return the ids of one database after the other, in the order of `dead_slices`."""
    which, after, limit = arguments
    found: list[int] = []
    for tag in sorted(tags):
        if len(found) < limit and tag >= after >> ROW_BITS:
            start = after & _ROW if tag == after >> ROW_BITS else 0
            ids = ask(tag, (_of(which, tag), start, limit - len(found)))
            found += [tagged(tag, id) for id in ids]
    return found


def dead_slices(ask: Ask, tags: Sequence[int], arguments: Arguments) -> int:
    """Redrive or purge up to the limit, which is the last argument."""
    which, *between, limit = arguments
    done = 0
    for tag in tags:
        if done < limit:
            done += ask(tag, (_of(which, tag), *between, limit - done))
    return done
