"""Root jobs by name and status, for metrics. What is read and what is returned are bounded."""

from collections import Counter

from msgspec import Struct

from ...clock import SECOND
from ...session.session import Session
from .job_records import STATUS, JobStatus

ROOT_STATUSES: tuple[JobStatus, ...] = (
    "new", "running", "success", "failed", "cancelled", "stale"
)  # fmt: skip
UNFINISHED: tuple[JobStatus, ...] = ("new", "running")
MOST_ROOTS = 5_000  # of each status, the newest, are counted
MOST_NAMES = 100
OTHER = "(other)"  # the names with the fewest jobs, where there are more


class JobMetrics(Struct):
    """The number of root jobs by name and status, and the age of the oldest unfinished ones."""

    counts: dict[tuple[str, str], int]
    oldest: dict[str, float]


def job_metrics(session: Session) -> JobMetrics:
    """Read the index of the roots by status."""
    by_status: dict[JobStatus, Counter[str]] = {}
    names: Counter[str] = Counter()
    for status in ROOT_STATUSES:
        values = session.values(f"{STATUS}{status}/", limit=MOST_ROOTS, reverse=True)
        by_status[status] = Counter(str(value.data) for value in values)
        names.update(by_status[status])
    shown = {name for name, _ in names.most_common(MOST_NAMES)}
    counts: Counter[tuple[str, str]] = Counter()
    for status, found in by_status.items():
        for name, n in found.items():
            counts[name if name in shown else OTHER, status] += n
    return JobMetrics(dict(counts), {one: _oldest(session, one) for one in UNFINISHED})


def _oldest(session: Session, status: str) -> float:
    """The age of the oldest root of a status in seconds; an id begins with its time of creation."""
    for value in session.values(f"{STATUS}{status}/", limit=1):
        created = int(value.key.rpartition("/")[2][:14], 16)
        return max(0.0, (session.broker.clock.now() - created) / SECOND)
    return 0.0
