"""What a planner of Spark asks of a broker, without Spark."""

from ackflow import Session
from ackflow.broker.readers import commit as batches
from ackflow.broker.readers import verbs as readers
from ackflow.broker.readers.commit import BatchDone
from ackflow.broker.readers.verbs import PlannedPart, ReaderLag
from ackflow.broker.requests import BatchCommit, ReaderRequest
from ackflow.ranges import Ranges
from ackflow.session.messages import Batch, Message

LEASE = 60.0


class Planner:
    """What the planner process of one run of a query does."""

    def __init__(self, q: Session, number: int = 0, *, reader: str = "r1", manual: bool = False,
                 queue: str = "orders", group: str = "g") -> None:  # fmt: skip
        self.q, self.reader = q, reader
        self.epoch = q.broker.do(
            readers.start_reader, True, reader, queue, group, manual, number
        )  # fmt: skip

    def latest(
        self, start: int, rows: int = 100, size: int = 1 << 40, until: int | None = None
    ) -> int:
        asked = ReaderRequest(self.reader, self.epoch, start, rows, size, LEASE, until)
        return self.q.broker.do(readers.lease_next, True, asked).number

    def partitions(self, start: int, end: int) -> list[PlannedPart]:
        return self.q.broker.do(readers.hand_over, True, self.reader, self.epoch, start, end, LEASE)

    def settle(self, number: int) -> int:
        return self.q.broker.do(readers.settle_to, True, self.reader, self.epoch, number, LEASE)

    def keep(self) -> int:
        return self.q.broker.do(readers.keep, False, self.reader, self.epoch, LEASE)

    def bind(
        self, start: int, end: int, batch: int, run: str = "run", query: str = "query"
    ) -> None:
        self.q.broker.do(
            batches.bind, False, self.reader, self.epoch, start, end, query, batch, run
        )

    def idle(self, start: int) -> bool:
        return self.q.broker.look(readers.is_idle, self.reader, self.epoch, start)

    def lag(self) -> ReaderLag:
        return self.q.broker.look(readers.lag, self.reader, self.epoch)

    def stored(self, lot: PlannedPart) -> Ranges:
        return self.q.broker.look(
            readers.stored, self.reader, self.epoch, lot.number, lot.lane, lot.token, lot.ranges
        )

    def read(self, lots: list[PlannedPart], size: int = 1 << 30) -> list[Message]:
        found: list[Message] = []
        for lot in lots:
            left = lot.ranges
            while left:
                answer = self.q.broker.look(
                    readers.fetch, self.reader, self.epoch, lot.number, lot.lane, lot.token,
                    left, size,
                )  # fmt: skip
                found += Batch.of(self.q, answer, Message)
                stop = answer.runs[-1].hi
                left = [at for at in left if at > stop]
                left = left if len(left) % 2 == 0 else [stop, *left]
        return found

    def messages(self, start: int, end: int) -> list[Message]:
        return self.read(self.partitions(start, end))

    def data(self, start: int, end: int) -> list[object]:
        return [message.data for message in self.messages(start, end)]


def stage(q: Session, batch: int, *values: object, producer: str = "query") -> str:
    return q.stage(producer, batch, "results", list(values))


def commit(q: Session, batch: int, *stages: str, run: str = "run", **more: object) -> BatchDone:
    asked = BatchCommit("query", batch, list(stages), "query", run, **more)  # type: ignore[arg-type]
    return q.broker.do(batches.commit_batch, True, asked)


def done(q: Session) -> int:
    return q.group_stats("orders", "g").counts.done


def popped(q: Session, queue: str = "orders", group: str = "g", batch: int = 1000) -> list[object]:
    return [message.data for message in q.pop(queue, group=group, batch=batch)]
