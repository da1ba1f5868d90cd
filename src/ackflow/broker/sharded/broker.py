"""The broker of several databases, with the interface of a broker of one."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import unwrap
from itertools import count
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from msgspec import structs

from ... import validate
from ...clock import Clock, Signal
from ...errors import (
    AckflowError,
    InvalidArgument,
    NotFound,
    SessionClosed,
    StorageAway,
)
from ...model import DatabaseStats, Upkeep, Why
from ...options import DEFAULTS
from ...store.tx import Tx
from ..broker import Broker, wait_and_pop
from ..core.ack_and_pop import NextHandout
from ..core.admin.admin import configure_group
from ..core.handout import Handout
from ..core.push import Answer, Placed
from ..core.settle import Outcome
from ..core.transactions import Result
from ..reach.merging import tagged
from ..requests import Chunk, DeleteOperation, PopRequest, PushRequest, PutOperation, digest_of
from ..sampling.live_stats import StatsBoard
from ..verb import BY_FUNCTION, Scope, Verb, structs_in
from ..views.metrics import snapshot
from .database import Database
from .directory import Directory, NotKnown, check_different, choose

P = ParamSpec("P")
T = TypeVar("T")
Run = Callable[[Broker, tuple[Any, ...]], Any]
SEVERAL_STORES = 0  # in place of a store's id: every answer names its own
log = logging.getLogger("ackflow")


class Plan(NamedTuple):
    """Where a call runs: in each of these databases, with arguments of their own for a call that is
    divided by its leases."""

    verb: Verb
    arguments: tuple[Any, ...]
    databases: Sequence[Database]
    leases: dict[Database, set[int]] | None = None

    @property
    def direct(self) -> bool:
        """Whether the call is passed on as it is. Ids of rows are tagged even if one database has
        the queue, so that those of another queue are not taken for them."""
        return len(self.databases) == 1 and self.verb.several.run is None


class ShardedStore:
    """The store of a broker of several databases, of which a session needs the id."""

    id = SEVERAL_STORES

    def backup(self, target: str) -> None:
        raise InvalidArgument("back up each database separately, with its own tool")


class ShardedBroker:
    """Runs each verb on the database that has what it touches. Any thread may call it."""

    local = True

    def __init__(self, databases: Sequence[Database], clock: Clock) -> None:
        self.clock = clock
        self.whole = True
        self.store = ShardedStore()
        self.databases = databases
        self.directory = Directory(databases)
        self._turn = count()  # which database a pop of a spread queue tries first
        self._joined: set[tuple[str, str]] = set()
        self.stats = StatsBoard(lambda: self.read(snapshot), clock.steady)
        self._closed = False
        self._closing = threading.Lock()
        self._threads = ThreadPoolExecutor(4 * len(databases), thread_name_prefix="ackflow-shard")
        list(self._threads.map(Database.open, databases))
        try:
            check_different(databases)
            if not any(database.up for database in databases):
                with databases[0].broker():
                    pass
        except AckflowError:
            self.close()
            raise

    # verbs

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a verb where its facts say, each time in one transaction."""
        plan = self.plan(verb, args, kwargs)
        return self.run(plan, lambda broker, given: broker.do(verb, synced, *given))  # type: ignore[no-any-return, call-arg]

    def look(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb in read-only transactions."""
        plan = self.plan(verb, args, kwargs)
        return self.run(plan, lambda broker, given: broker.look(verb, *given))  # type: ignore[no-any-return, call-arg]

    def query(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb like `look`, after expired leases have ended."""
        self.catch_up()
        return self.look(verb, *args, **kwargs)

    def read(self, verb: Callable[[Tx], T]) -> T:
        """Run a verb without arguments on snapshots."""
        plan = self.plan(verb, (), {})
        return self.run(plan, lambda broker, _: broker.read(verb))  # type: ignore[no-any-return]

    def push(self, request: PushRequest) -> Answer:
        """Push to the databases of the partitions. One that fails does not undo the others: a repeat
        with the same key adds only what is missing."""
        self.check_open()
        answer: Answer = [[] for _ in request.chunks]
        done = 0
        for database, indexes in self.parts(request).items():
            part = part_of(request, indexes)
            try:
                with database.broker() as broker:
                    places = broker.push(part)
            except AckflowError as error:
                raise after_others(done, error) from error
            for index, run in zip(indexes, stamped(places, database), strict=True):
                answer[index] = run
            done += sum(chunk.count for chunk in part.chunks)
        return answer

    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        """Pop, waiting up to `wait` seconds for messages in any database of the queue."""
        self.check_open()
        homes = self.homes_of_pop(request)
        if len(homes) == 1:
            with homes[0].broker() as broker:
                handout = broker.pop(request, wait)
            self.directory.remember(handout.token, homes[0])
            return handout
        return wait_and_pop(self, request, wait)

    def try_pop(self, request: PopRequest) -> Handout:
        """Pop what is there now, from the first database that has something."""
        last: Handout | None = None
        for database in self.in_turn(request):
            with database.broker() as broker:
                handout = broker.try_pop(request)
            last = self.better(last, handout, database)
            if last.runs:
                break
        assert last is not None
        return last

    def better(self, last: Handout | None, handout: Handout, database: Database) -> Handout:
        """The answer of a pop after another database was asked: the later one, and when to retry."""
        if handout.runs:
            self.directory.remember(handout.token, database)
        elif last is not None and last.retry_at is not None:
            handout.retry_at = min(last.retry_at, handout.retry_at or last.retry_at)
        return handout

    def homes_of_pop(self, request: PopRequest, ask: bool = True) -> list[Database]:
        """The databases of the queue of a pop, or the one where the queue will be."""
        homes = self.directory.homes(request.queue, ask)
        if not homes:
            known = self.directory.remembered(request.token)
            return [known or self.directory.for_new(request.queue)]
        known = self.directory.remembered(request.token)
        if known is not None and known not in homes:
            raise InvalidArgument("the token belongs to a lease of another queue or group")
        if len(homes) > 1:
            if request.partition is not None:
                return [choose(homes, request.partition)]
            if DEFAULTS[request.dialect].ordering == "exclusive":
                raise InvalidArgument(
                    f"queue {request.queue!r} is spread over several databases, and the "
                    f"{request.dialect} style promises one lease for a whole queue"
                )
            if not ask and (request.queue, request.group) not in self._joined:
                raise NotKnown()
            self._join(request, homes)
        return homes

    def in_turn(self, request: PopRequest, ask: bool = True) -> list[Database]:
        """The databases for a pop, in the order in which to try them, without those that are away."""
        homes = self.homes_of_pop(request, ask)
        if len(homes) == 1:
            return homes
        if request.token is not None:  # a repeat gets the same lease
            with contextlib.suppress(StorageAway):  # a lease there ends by itself
                known = self.directory.lease(request.token, ask)
                if known is not None:
                    return [known]
        first = next(self._turn) % len(homes)
        return [one for one in homes[first:] + homes[:first] if one.up] or homes[:1]

    def _join(self, request: PopRequest, homes: list[Database]) -> None:
        """Create a group in all databases of a queue at its first pop, so that it begins at the same
        time in each."""
        key = request.queue, request.group
        if key not in self._joined and all(one.up for one in homes):
            start: dict[str, object] = {} if request.start == "all" else {"start": request.start}
            for database in homes:
                with database.broker() as broker:
                    if broker.read(lambda tx: _has_group(tx, *key)):
                        continue
                    broker.do(configure_group, False, *key, start, request.dialect)
            self._joined.add(key)

    @contextlib.contextmanager
    def wait_for(self, request: PopRequest, signal: Signal) -> Iterator[None]:
        """Inside the context, set the signal whenever there may be messages in any database."""
        with contextlib.ExitStack() as stack:
            for database in self.homes_of_pop(request):
                if (opened := database.opened) is not None:
                    stack.enter_context(opened.wait_for(request, signal))
            yield

    def upkeep(self) -> Upkeep:
        """Run every duty of upkeep once in every database that answers."""
        self.check_open()
        done = [
            structs.astuple(one)
            for one in self._everywhere(lambda broker: broker.upkeep(), self.databases)
        ]
        return Upkeep(*map(sum, zip(*done, strict=True)))

    def catch_up(self) -> None:
        """End expired leases and make claims due, wherever the database answers."""
        self.check_open()
        self._everywhere(lambda broker: broker.catch_up(), self.databases)

    def close(self) -> None:
        with self._closing:
            if not self._closed:
                self._closed = True
                self._threads.shutdown()
                for database in self.databases:
                    database.close()

    def check_open(self) -> None:
        if self._closed:
            raise SessionClosed()

    # for the server's metrics

    @property
    def commits(self) -> int:
        return sum(one.opened.commits for one in self.databases if one.opened is not None)

    @property
    def verbs(self) -> int:
        return sum(one.opened.verbs for one in self.databases if one.opened is not None)

    def ack_times(self) -> dict[int, list[int]]:
        return {
            tagged(one.tag, group): counts
            for one in self.databases
            if one.opened is not None
            for group, counts in one.opened.ack_times().items()
        }

    # plans

    def parts(self, request: PushRequest, ask: bool = True) -> dict[Database, list[int]]:
        """The indexes of the chunks of a push, by database."""
        found: dict[Database, list[int]] = {}
        for index, chunk in enumerate(request.chunks):
            home = self.directory.place(chunk.queue, chunk.partition, ask)
            found.setdefault(home or self.directory.for_new(chunk.queue), []).append(index)
        return found

    def plan(
        self, verb: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        ask: bool = True,
    ) -> Plan:  # fmt: skip
        """Decide where a verb runs, by its facts."""
        self.check_open()
        function = verb.func if isinstance(verb, partial) else verb
        facts = BY_FUNCTION.get(unwrap(function))
        if facts is None:
            name = getattr(function, "__name__", "this")
            raise InvalidArgument(f"{name} works on one database; connect to that database alone")
        if isinstance(verb, partial):
            args, kwargs = (*verb.args, *args), {**verb.keywords, **kwargs}
        arguments = facts.complete(args, kwargs)
        for name in facts.queues:
            value = arguments[facts.parameters.index(name)]
            if value is not None:
                validate.name(value, "queue")
        if facts.home:
            return Plan(facts, arguments, self.databases[:1])
        return _Planner(self, facts, arguments, ask).plan()

    def run(self, plan: Plan, call: Run) -> Any:
        """Run a plan with the given call."""
        verb, several = plan.verb, plan.verb.several
        if plan.direct:
            (only,) = plan.databases
            with only.broker() as broker:
                return stamped(call(broker, plan.arguments), only)
        if plan.leases is not None:
            return self._run_divided(plan, call)
        databases = list(plan.databases)
        if verb.read_only:
            databases = [one for one in databases if one.up]
            away = [one.place for one in plan.databases if one not in databases]
            if away and not several.away:
                log.warning("%s does not include %s", verb.name, " and ".join(away))
        lines = [
            DatabaseStats(
                one.place, False, one.store, error=one.error.message if one.error else None
            )
            for one in plan.databases
            if several.away and one not in databases
        ]
        by_tag = {one.tag: one for one in databases}
        if not by_tag:
            with plan.databases[0].broker():
                pass

        def ask(tag: int, arguments: tuple[Any, ...]) -> Any:
            with by_tag[tag].broker() as broker:
                return stamped(call(broker, arguments), by_tag[tag])

        if several.run is not None:
            return several.run(ask, list(by_tag), plan.arguments)
        answer = several.merge(self._answers(ask, list(by_tag), plan), plan.arguments)
        return answer + lines if lines else answer

    def _answers(
        self, ask: Callable[[int, tuple[Any, ...]], Any], tags: list[int], plan: Plan
    ) -> list[Any]:
        """Run a verb in several databases; one that lacks the group or partition has no answer."""
        answers, lacking = [], None
        for asked in [self._threads.submit(ask, tag, plan.arguments) for tag in tags]:
            try:
                answers.append(asked.result())
            except NotFound as error:
                lacking = error
        if not answers and lacking is not None:
            raise lacking
        return answers

    def _run_divided(self, plan: Plan, call: Run) -> Any:
        assert plan.leases is not None
        divide = plan.verb.several.divide
        assert divide is not None
        (name,) = plan.verb.leases
        at = plan.verb.parameters.index(name)
        answers = []
        for database, tokens in plan.leases.items():
            mine = {t: marks for t, marks in plan.arguments[at].items() if t in tokens}
            given = (*plan.arguments[:at], mine, *plan.arguments[at + 1 :])
            with database.broker() as broker:
                answers.append((tokens, stamped(call(broker, given), database)))
        return divide.join(plan.arguments, answers)

    def _everywhere(self, call: Callable[[Broker], T], databases: Sequence[Database]) -> list[T]:
        """Run a call in every database that answers."""

        def one(database: Database) -> list[T]:
            try:
                with database.broker() as broker:
                    return [call(broker)]
            except StorageAway:
                return []

        up = [database for database in databases if database.up]
        if len(up) == 1:
            return one(up[0])
        return [answer for answers in self._threads.map(one, up) for answer in answers]


class _Planner:
    """Finds the databases that a call touches."""

    def __init__(
        self, broker: ShardedBroker, facts: Verb, arguments: tuple[Any, ...], ask: bool
    ) -> None:
        self.broker, self.facts, self.arguments, self.ask = broker, facts, arguments, ask
        self.directory = broker.directory
        self.given = dict(zip(facts.parameters, arguments, strict=True))
        self.touched: dict[Database, str] = {}  # with what is there, for the sentence of a refusal

    def plan(self) -> Plan:
        facts, several = self.facts, self.facts.several
        if several.spread and self.given[several.spread].get("spread") is not None:
            return self._spreading()
        scope = facts.scope(self.arguments)
        parts = list(structs_in(self.arguments))
        chunks = {(part.queue, part.partition) for part in parts if isinstance(part, Chunk)}
        named = scope.queues - {queue for queue, _ in chunks}
        new: list[str] = []
        by_lease = self._touch_leases(scope)
        if len(by_lease) > 1 and several.divide is not None and not named and not chunks:
            several.divide.check(self.arguments)
            return Plan(facts, self.arguments, list(by_lease), by_lease)
        for queue, partition in chunks:
            home = self.directory.place(queue, partition, self.ask)
            if home is None:
                new.append(queue)
            else:
                self._touch(home, f"queue {queue!r}")
        self._touch_indirect(scope)
        homes: dict[str, list[Database]] = {}
        for queue in named:
            homes[queue] = self.directory.homes(queue, self.ask)
            if not homes[queue]:
                new.append(queue)
            elif len(homes[queue]) == 1:
                self._touch(homes[queue][0], f"queue {queue!r}")
        for queue, some in homes.items():
            if len(some) > 1:
                return self._on_spread(queue, some, scope, alone=len(named) == 1 and not chunks)
        keys = [p.key for p in parts if isinstance(p, PutOperation | DeleteOperation)]
        if keys:
            self._touch_values(keys)
        if not self.touched:
            if new or keys:
                self._touch(self.directory.for_new(min(new or keys)), "")
            elif scope.producers:
                self._touch_producers(scope)
            elif scope.leases:  # unknown, which any database says
                self._touch(next(one for one in self.broker.databases if one.up), "")
            elif scope.indirect:
                self._touch(self.broker.databases[0], "")
            elif not chunks and not named:
                return Plan(facts, self.arguments, self.broker.databases)
        return self._in_one()

    def _in_one(self) -> Plan:
        if len(self.touched) > 1:
            (one, this), (other, that), *_ = self.touched.items()
            raise InvalidArgument(
                f"{self.facts.name} works inside one database: {this} is in {one.place}, "
                f"{that} in {other.place}"
            )
        return Plan(self.facts, self.arguments, list(self.touched))

    def _touch(self, database: Database, what: str) -> None:
        self.touched.setdefault(database, what)

    def _touch_leases(self, scope: Scope) -> dict[Database, set[int]]:
        found: dict[Database, set[int]] = {}
        unknown: set[int] = set()
        for token in scope.leases:
            database = self.directory.lease(token, self.ask)
            if database is None:
                unknown.add(token)
            else:
                found.setdefault(database, set()).add(token)
                self._touch(database, "a lease")
        if found:
            next(iter(found.values())).update(unknown)  # any database refuses them
        return found

    def _touch_indirect(self, scope: Scope) -> None:
        indirect = Scope(readers=scope.readers, stages=scope.stages, batches=scope.batches)
        if not indirect.indirect:
            return
        if not self.ask:
            raise NotKnown()
        for part in (
            *(Scope(readers={name}) for name in scope.readers),
            *(Scope(stages={name}) for name in scope.stages),
            *(Scope(batches={name}) for name in scope.batches),
        ):
            database = self.directory.behind(part)
            if database is not None:
                names = (*part.readers, *part.stages, *part.batches)
                self._touch(database, str(names[0]))

    def _touch_producers(self, scope: Scope) -> None:
        """A producer without stages: where it published before, else where its name says."""
        if not self.ask:
            raise NotKnown()
        name = min(scope.producers)
        known = self.directory.behind(Scope(producers=scope.producers))
        self._touch(known or self.directory.for_new(name), name)

    def _touch_values(self, keys: list[str]) -> None:
        if not self.ask:
            raise NotKnown()
        home = next(iter(self.touched), None)
        found = self.directory.value(keys, home)
        if found is not None:
            self._touch(found, f"value {keys[0]!r}")

    def _on_spread(self, queue: str, homes: list[Database], scope: Scope, alone: bool) -> Plan:
        """A verb on a queue in several databases: where its message or lease is, or in all."""
        if not alone:
            raise InvalidArgument(
                f"{self.facts.name} works inside one database, and queue {queue!r} is spread over "
                "several"
            )
        if self.facts.readers or self.facts.several.one:
            raise InvalidArgument(
                f"queue {queue!r} is spread over several databases; {self.facts.name} works inside one"
            )
        message = self.given.get(self.facts.several.message)
        if message is not None:
            return Plan(
                self.facts, self.arguments,
                [self.directory.of_message(message, homes) or homes[0]],
            )  # fmt: skip
        if scope.leases:
            return self._in_one()
        return Plan(self.facts, self.arguments, homes)

    def _spreading(self) -> Plan:
        """Create a queue in every database, or refuse to gather what is spread."""
        (name,) = self.facts.scope(self.arguments).queues
        homes = self.directory.homes(name)
        if self.given[self.facts.several.spread]["spread"]:
            self.directory.forget(name)
            return Plan(self.facts, self.arguments, self.broker.databases)
        if len(homes) > 1:
            raise InvalidArgument(
                f"queue {name!r} is spread over several databases and is not gathered again"
            )
        return Plan(self.facts, self.arguments, homes or [self.directory.for_new(name)])


def part_of(request: PushRequest, indexes: list[int]) -> PushRequest:
    """The chunks of a push for one database, under the same key."""
    if len(indexes) == len(request.chunks):
        return request
    chunks = [request.chunks[index] for index in indexes]
    digest = b"" if request.key is None else digest_of(chunks)
    return structs.replace(request, chunks=chunks, digest=digest)


def stamped(answer: Any, database: Database) -> Any:
    """Write the database into the positions and ids of an answer."""
    if isinstance(answer, list):
        for one in answer:
            if not isinstance(one, list | Placed | Outcome | Result | DatabaseStats):
                break
            stamped(one, database)
    elif isinstance(answer, Placed | Outcome):
        answer.store = database.store
    elif isinstance(answer, DatabaseStats):
        answer.place = database.place
    elif isinstance(answer, Result):
        stamped(answer.places, database)
    elif isinstance(answer, NextHandout):
        stamped(answer.outcomes, database)
    elif isinstance(answer, Why) and answer.dead_letter is not None:
        return structs.replace(answer, dead_letter=tagged(database.tag, answer.dead_letter))
    return answer


def after_others(done: int, error: AckflowError) -> AckflowError:
    """The error of one database, after others have stored their part of a push."""
    if not done:
        return error
    said = f"{error.message}; {done:,} messages for other databases were pushed before"
    return type(error)(said, **error.details)


def _has_group(tx: Tx, queue_name: str, name: str) -> bool:
    queue = tx.queue(queue_name)
    return queue is not None and tx.group(queue.id, name) is not None
