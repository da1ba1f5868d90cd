"""The middleware on a database: no server, no connection. Leases are extended by a thread."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..broker.broker import Broker
from ..broker.core.handout import payload
from ..broker.core.routing.publish import publish
from ..broker.core.settle import settle, settle_many
from ..broker.requests import Mark, PopRequest, Publication, Verdict
from ..clock import Signal
from ..dialects.rabbitmq.arguments import check_queue
from ..dialects.rabbitmq.verbs import (
    DIALECT,
    QueueRequest,
    bind,
    declare_exchange,
    declare_queue,
    extend_many,
    remove_queue,
)
from ..errors import AckflowError, InvalidArgument, NotFound, QueueNotFound
from ..ids import LaneId
from ..options import QUEUE_MODE
from ..session.connect import connect
from ..store.records import Binding, Exchange
from .transport import Delivery

LEASE_SECONDS = 6.0  # the messages of a killed process are delivered again after this time
log = logging.getLogger("ackflow.middleware")
Held = tuple[int, LaneId, int]  # token, lane, sequence


class LeaseChannel:
    """The deliveries of one consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._last = 0
        self.room = Signal()
        self.is_open = True

    def add(self, held: Held) -> int:
        with self._lock:
            self._last += 1
            self._held[self._last] = held
            return self._last

    @property
    def count(self) -> int:
        return len(self._held)

    def tokens(self) -> set[int]:
        with self._lock:
            return {token for token, _, _ in self._held.values()}

    def basic_ack(self, delivery_tag: int) -> None:
        self._settle(delivery_tag, Verdict("ack", confirm=True))

    def ack_all(self, delivery_tags: Sequence[int]) -> None:
        """Acknowledge messages in one transaction."""
        with self._lock:
            held = [one for tag in delivery_tags if (one := self._held.pop(tag, None)) is not None]
        lost = self._settle_all(held, Verdict("ack", confirm=True))
        if lost or len(held) < len(delivery_tags):
            log.warning("%d deliveries were lost", lost + len(delivery_tags) - len(held))
        self.room.ring()

    def _settle_all(self, held: Iterable[Held], verdict: Verdict) -> int:
        """Settle in one transaction; returns how many were lost."""
        marks: dict[int, list[Mark]] = {}
        for token, lane, sequence in held:
            marks.setdefault(token, []).append(Mark(verdict, lane, [sequence, sequence + 1]))
        if not marks:
            return 0
        outcomes = self._broker.do(settle_many, verdict.synced, marks, False)
        return sum(bool(outcome.refused) for outcome in outcomes)

    def basic_nack(self, delivery_tag: int, requeue: bool = True) -> None:
        self._settle(delivery_tag, Verdict("nack" if requeue else "reject"))

    def _settle(self, tag: int, verdict: Verdict) -> None:
        with self._lock:
            held = self._held.pop(tag, None)
        if held is None:
            log.warning("delivery %d was settled before, or came through another channel", tag)
            return
        token, lane, sequence = held
        mark = Mark(verdict, lane, [sequence, sequence + 1])
        (outcome,) = self._broker.do(settle, verdict.synced, token, [mark])
        if outcome.refused:
            log.warning("delivery %d was lost: %s", tag, outcome.refused[0].error)
        self.room.ring()

    def close(self) -> None:
        """Give back everything that is held."""
        self.is_open = False
        with self._lock:
            held, self._held = self._held, {}
        self._settle_all(held.values(), Verdict("release"))


class BrokerTransport:
    def __init__(self, address: str) -> None:
        self._session = connect(address, consumer="middleware")
        broker = self._session.broker
        if not isinstance(broker, Broker):
            self._session.close()
            raise InvalidArgument("a middleware address names one file or one PostgreSQL database")
        self._broker = broker
        self._declared: dict[str, Callable[[], object]] = {}
        self._channel: LeaseChannel | None = None
        self._queue, self._prefetch, self._beside = "", 0, 0
        self._ready: list[Delivery] = []
        self._stopped = threading.Event()
        self._renewer: threading.Thread | None = None

    def declare_queue(self, name: str, arguments: Mapping[str, Any]) -> None:
        asked = QueueRequest(name, True, False, None, "", check_queue(name, arguments))
        self._declare(f"queue {name}", lambda: self._broker.do(declare_queue, True, asked, ""))

    def declare_exchange(self, name: str, kind: str) -> None:
        exchange = Exchange(name, kind)  # type: ignore[arg-type]
        self._declare(f"exchange {name}", lambda: self._broker.do(declare_exchange, True, exchange))

    def bind(self, queue: str, exchange: str, key: str) -> None:
        binding = Binding(exchange, False, queue, key)
        self._declare(
            f"binding {queue} {exchange} {key}", lambda: self._broker.do(bind, True, binding, "")
        )

    def _declare(self, what: str, act: Callable[[], object]) -> None:
        self._declared[what] = act
        act()

    def publish(self, exchange: str, key: str, body: bytes, *, mandatory: bool) -> None:
        (reached,) = self._broker.do(publish, True, [Publication(exchange, [key], body)])
        if isinstance(reached, AckflowError):
            raise reached
        if not reached and mandatory:
            raise NotFound(f"no queue for {key!r}")

    def start(self, queue: str, prefetch: int) -> None:
        self._queue, self._prefetch, self._beside = queue, prefetch, 0
        self._channel = LeaseChannel(self._broker)
        self._stopped.clear()
        self._renewer = threading.Thread(target=self._renew, name="ackflow-renew", daemon=True)
        self._renewer.start()

    def _renew(self) -> None:
        while not self._stopped.wait(LEASE_SECONDS / 3):
            assert self._channel is not None
            try:
                self._broker.do(extend_many, False, list(self._channel.tokens()), LEASE_SECONDS)
            except AckflowError as error:
                log.warning("leases could not be extended, and will be: %s", error)

    def hold(self, held: int) -> None:
        self._beside = held

    def next(self, seconds: float) -> Delivery | None:
        channel = self._channel
        assert channel is not None
        if self._ready:
            return self._ready.pop(0)
        room = self._prefetch + self._beside - channel.count
        if room <= 0:
            channel.room.clear()
            channel.room.wait(seconds)
            return None
        request = PopRequest(
            self._queue, QUEUE_MODE, self._session.consumer, room, LEASE_SECONDS, dialect=DIALECT,
            create=False,
        )  # fmt: skip
        try:
            answer = self._broker.pop(request, seconds)
        except QueueNotFound:
            self._declare_again(seconds)
            return None
        assert answer.token is not None or not answer.runs
        for run in answer.runs:
            for sequence in range(run.lo, run.hi):
                tag = channel.add((answer.token or 0, run.lane, sequence))
                body = payload(run.body, sequence - run.first)
                self._ready.append(Delivery(body, channel, tag, run.redelivered))
        return self._ready.pop(0) if self._ready else None

    def _declare_again(self, seconds: float) -> None:
        """Declare everything again, because the queue was deleted; not if it was deleted here."""
        if f"queue {self._queue}" in self._declared:
            log.warning("queue %s was deleted: declaring it again", self._queue)
            for declare in list(self._declared.values()):
                declare()
        else:
            self._stopped.wait(seconds)

    def stop(self) -> None:
        self._stopped.set()
        self._ready.clear()
        if self._channel is not None:
            self._channel.close()
        if self._renewer is not None:
            self._renewer.join()

    def delete(self, queue: str) -> None:
        self._declared.pop(f"queue {queue}", None)
        self._broker.do(remove_queue, True, queue, "", False)

    def close(self) -> None:
        self.stop()
        self._session.close()
