"""Read-only queries: statistics, messages, dead letters, values, and why."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from .. import validate
from ..broker import presence
from ..broker.broker import Verbs
from ..broker.core import dead_letters
from ..broker.core.upkeep import sweeps
from ..broker.requests import BrowseRequest, DeadFilter
from ..broker.views import browse, peek, stats
from ..broker.views import why as whys
from ..clock import SECOND
from ..errors import InvalidArgument
from ..model import (
    BrokerInfo,
    DatabaseStats,
    DeadLetter,
    DeadSummary,
    GroupStats,
    LeaseStats,
    News,
    Page,
    PartitionStats,
    Progress,
    QueueStats,
    StoredMessage,
    SweepStats,
    Value,
    Why,
)
from ..options import QUEUE_MODE
from ..validate import Time


class Queries(ABC):
    """The read-only methods of a session."""

    @property
    @abstractmethod
    def broker(self) -> Verbs: ...

    def why(self, queue: str, message_id: str, *, group: str = QUEUE_MODE) -> Why:
        """What became of a message for a group, and why it is or is not delivered now."""
        while self.broker.do(whys.drop_overdue, False, queue, message_id, group):
            pass
        return self.broker.query(whys.why, queue, message_id, group)

    def queues(self) -> list[QueueStats]:
        """Return statistics of all queues."""
        return self.broker.query(stats.queues)

    def databases(self) -> list[DatabaseStats]:
        """The databases behind this session, and which are away: what is in those is missing from
        lists and sums."""
        return self.broker.look(stats.databases)

    def queue_stats(self, queue: str) -> QueueStats:
        """Return statistics of one queue."""
        return self.broker.query(stats.queue_stats, queue)

    def group_stats(self, queue: str, group: str = QUEUE_MODE) -> GroupStats:
        """Return statistics of one group."""
        return self.broker.query(stats.group_stats, queue, group)

    def partitions(self, queue: str) -> list[PartitionStats]:
        """Return the partitions of a queue."""
        return self.broker.look(stats.partitions, queue, 0, None)

    def leases(self, queue: str, group: str | None = None) -> list[LeaseStats]:
        """Return the live leases of a queue or group, with consumer and expiry; at most the first
        thousand of each group."""
        return self.broker.query(stats.leases, queue, group)

    def brokers(self) -> list[BrokerInfo]:
        """Return the brokers: the processes that have the database open, the oldest first.

        A broker is listed two seconds after it was opened, and until it is closed; one that was killed,
        for a minute.
        """
        return self.broker.query(presence.brokers)

    def sweeps(self) -> list[SweepStats]:
        """Return running seeks, purges and deletes, and those that ended in the last hour.

        Those that fitted into one transaction are not listed.
        """
        return self.broker.query(sweeps.list_sweeps)

    def progress(
        self, queue: str, group: str = QUEUE_MODE, partition: str | None = None
    ) -> list[Progress]:
        """Return the progress of a group by partition. At most a thousand leases are read."""
        return self.broker.query(stats.progress, queue, group, partition)

    def message(self, queue: str, id: str, *, group: str | None = None) -> StoredMessage:
        """Return one stored message, without side effects."""
        return self.broker.query(browse.get, queue, id, group)

    def peek(self, queue: str, *, group: str = QUEUE_MODE, limit: int = 10) -> list[StoredMessage]:
        """Return the messages that a group would get next, without side effects."""
        return self.broker.query(peek.peek, queue, group, limit)

    def follow(
        self,
        queue: str,
        after: dict[int, int] | None = None,
        *,
        partition: str | None = None,
        last: int = 0,
        limit: int = 1000,
    ) -> News:
        """Return the messages pushed since an earlier call, whose result gave `after`.

        The first call has no `after`: it returns the `last` messages and the position to continue.
        """
        if after is not None and not (
            isinstance(after, dict)
            and all(isinstance(n, int) for pair in after.items() for n in pair)
        ):
            raise InvalidArgument(
                f"after must be the `after` of the previous result, got {after!r}"
            )
        return self.broker.query(peek.follow, queue, partition, after, last, limit)

    def browse(
        self,
        queue: str,
        *,
        partition: str | None = None,
        group: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 100,
        seconds: float = 2.0,
        after: str | None = None,
    ) -> Page[StoredMessage]:
        """Return stored messages, without side effects; with `group`, each with its state there."""
        return self._browse(queue, None, partition, group, since, until, limit, seconds, after)

    def search(
        self,
        queue: str,
        text: str | bytes,
        *,
        partition: str | None = None,
        group: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 100,
        seconds: float = 2.0,
        after: str | None = None,
    ) -> Page[StoredMessage]:
        """Stored messages whose payload contains a text. Ends after `limit` or `seconds`; as long
        as `next` is given there may be more, also when nothing was found so far."""
        if not isinstance(text, bytes):
            text = validate.some_text(text, "text").encode()
        return self._browse(queue, text, partition, group, since, until, limit, seconds, after)

    def _browse(
        self, queue: str, text: bytes | None, partition: str | None, group: str | None,
        since: Time | None, until: Time | None, limit: int, seconds: float, after: str | None,
    ) -> Page[StoredMessage]:  # fmt: skip
        request = BrowseRequest(
            queue, partition, group, text, validate.time_or_none(since, "since"),
            validate.time_or_none(until, "until"), limit,
            validate.seconds(seconds, "seconds"), validate.page(after, 2),
        )  # fmt: skip
        return self.broker.query(browse.browse, request.check())

    def dead_letters(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        kind: str | None = None,
        error: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
        ids: Iterable[int] | None = None,
    ) -> Page[DeadLetter]:
        """Dead letters of a queue, newest first: all, or those that fit everything given.

        `after` is the `next` of the previous page.
        """
        which = self._dead_filter(queue, group, partition, kind, error, since, until, ids)
        place = validate.page(after, 1)
        validate.integer(limit, "limit", 1, 10_000)
        validate.integer(offset, "offset", 0, 1 << 60)
        return self.broker.query(
            dead_letters.entries, which, limit, offset, place[0] if place else None
        )

    def dead_summary(self, queue: str, group: str | None = None) -> list[DeadSummary]:
        """Count dead letters by cause, most frequent first; errors are grouped by the text before a colon."""
        return self.broker.query(dead_letters.summary, queue, group)

    def dead_distribution(self, queue: str, group: str | None = None) -> dict[str, int]:
        """Count dead letters by error, most frequent first; errors are grouped by the text before a colon."""
        found: dict[str, int] = {}
        for line in self.dead_summary(queue, group):
            found[line.error] = found.get(line.error, 0) + line.count
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def overdue_seconds(self) -> float:
        """Return for how long an expired lease or a due message has not been processed by upkeep."""
        return self.broker.look(stats.overdue) / SECOND

    def value(self, key: str) -> Value | None:
        """Return a keyed value, or None."""
        validate.name(key, "key")
        return self.broker.look(stats.value, key)

    def values(
        self,
        prefix: str = "",
        *,
        limit: int = 1000,
        after: str | None = None,
        reverse: bool = False,
    ) -> list[Value]:
        """The values whose keys begin with a prefix, in order of key, or in reverse.

        `after` is the last key of the page before.
        """
        prefix = validate.text(prefix, "prefix") or ""
        validate.integer(limit, "limit", 1, 100_000)
        after = None if after is None else validate.name(after, "after")
        return self.broker.look(
            stats.values, prefix, limit, after, validate.flag(reverse, "reverse")
        )

    def _dead_filter(
        self, queue: str, group: str | None, partition: str | None, kind: str | None,
        error: str | None, since: Time | None, until: Time | None, given: Iterable[int] | None,
    ) -> DeadFilter:  # fmt: skip
        return DeadFilter(
            queue, group, partition, validate.kind(kind), validate.time_or_none(since, "since"),
            validate.time_or_none(until, "until"), validate.text(error, "error"), None if given is None else validate.numbers(given, "ids"),
        ).check()  # fmt: skip
