"""The broker of a session that is connected to a server."""

import secrets
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from ..broker.core.handout import Handout
from ..broker.core.push import Answer
from ..broker.requests import PopRequest, PushRequest, TransactionRequest, digest_of
from ..clock import Clock, SystemClock
from ..errors import AckflowError, InvalidArgument, SessionClosed
from ..model import Upkeep
from ..options import MAX_BATCH
from ..store.tx import Tx
from . import protocol, wire
from .protocol import Request

P = ParamSpec("P")
T = TypeVar("T")


class Transport(Protocol):
    """Sends a request and returns its result; retries what is safe to repeat."""

    def send(self, request: Request) -> Any: ...
    def close(self) -> None: ...


class RemoteStore:
    """The store of a server, of which a session needs the id."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._id: int | None = None
        self._lock = threading.Lock()

    @property
    def id(self) -> int:
        if self._id is None:
            about = self._transport.send(protocol.about())
            with self._lock:
                self._id = about.store
        return self._id

    def backup(self, target: str) -> None:
        raise InvalidArgument(
            "a server cannot be backed up by a client; run `ackflow backup` where the file is"
        )


class RemoteBroker:
    """Sends verbs to a server. Pushes carry a key and pops a token, so that they can be repeated."""

    local = False

    def __init__(
        self, transport: Transport, clock: Clock | None = None,
        on_loop: Callable[[], Transport] | None = None,
    ) -> None:  # fmt: skip
        """`on_loop`: makes a transport to the same servers for asyncio."""
        self.transport = transport
        self.on_loop = on_loop
        self.clock = clock or SystemClock()
        self.whole = False
        self.store = RemoteStore(transport)
        self._closed = False

    def do(
        self, verb: Callable[Concatenate[Tx, P], T], synced: bool, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.check_open()
        result: Any = self.transport.send(protocol.verb(verb, synced, _with_key(args)))
        return wire.unpack(result) if isinstance(result, wire.PackedHandout) else result  # type: ignore[return-value]

    def look(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.do(verb, False, *args, **kwargs)

    query = look  # the server ends expired leases first

    def push(self, request: PushRequest) -> Answer:
        self.check_open()
        if request.key is None:
            # With a key the push can be repeated when its answer was lost.
            digest = digest_of(request.chunks)
            request = msgspec.structs.replace(request, key=secrets.token_hex(12), digest=digest)
        whole = protocol.push(request)
        if len(whole.body) <= protocol.PUSH_BYTES and _count(request) <= MAX_BATCH:
            answer: Answer = self.transport.send(whole)
            return answer
        return self._push_in_parts(request)

    def _push_in_parts(self, request: PushRequest) -> Answer:
        """Split a push that exceeds the server's limit. Each part has a key derived from the key of
        the whole, so that a repeat adds only what is missing."""
        answer: Answer = []
        for number, part in enumerate(protocol.parts(request), 1):
            try:
                answer += self.transport.send(protocol.push(part))
            except AckflowError as error:
                if number > 1:
                    done, total = (
                        sum(chunk.count for chunk in request.chunks[: len(answer)]),
                        _count(request),
                    )
                    said = f"{error.message}; {done:,} of {total:,} messages were pushed before"
                    raise type(error)(said, **error.details) from error
                raise
        return answer

    def pop(self, request: PopRequest, wait: float = 0.0) -> Handout:
        self.check_open()
        return wire.unpack(self.transport.send(protocol.pop(request.repeatable(), wait)))

    def upkeep(self) -> Upkeep:
        self.check_open()
        done: Upkeep = self.transport.send(protocol.upkeep())
        return done

    def check_open(self) -> None:
        if self._closed:
            raise SessionClosed()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.transport.close()


def _count(request: PushRequest) -> int:
    return sum(chunk.count for chunk in request.chunks)


def _with_key(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a transaction a key, and a pop a token, so that they can be repeated when the answer was
    lost. Without a key the repeat would be refused, because its acks are done."""
    return tuple(_repeatable(given) for given in arguments)


def _repeatable(given: Any) -> Any:
    if isinstance(given, TransactionRequest) and given.key is None:
        return msgspec.structs.replace(given, key=secrets.token_hex(12))
    return given.repeatable() if isinstance(given, PopRequest) else given
