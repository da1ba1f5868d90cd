"""An AMQP 0-9-1 connection: frames, negotiation, heartbeats and closing.

    HEADER ── protocol header ──► START ── start-ok ──► LOGIN ── the token is good ──► TUNE
    TUNE ── tune-ok ──► OPEN ── open ──► RUNNING ── error, close ──► CLOSING ── close-ok ──► CLOSED

A client that sends no heartbeats, because its handler takes long, keeps its connection as long as
its machine acknowledges what the server sends.
"""

import asyncio
import logging
import secrets
import socket
import struct
import time
from collections.abc import Hashable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

from pamqp.base import Frame
from pamqp.commands import Channel as ChannelMethods
from pamqp.commands import Connection as Methods

from ... import __version__
from ...errors import AckflowError, Unauthenticated
from . import frames
from .channel import Channel
from .errors import AmqpError, refused, translated
from .frames import BODY, END, FRAME_MAX, FRAME_MIN, HEADER, HEARTBEAT, METHOD, OVERHEAD
from .unread import WRITE_BUFFER, Unread
from .verbs import remove_owned

if TYPE_CHECKING:
    from ...broker.access_tokens import Role, Token
    from ...server.listener import Connections
    from .server import AmqpServer

CHANNEL_MAX = 2_047
HEARTBEAT_SECONDS = 60
CLOSE_SECONDS = 5.0  # for the close-ok of a client
# Of one connection, until it is answered; what the client sends then is not read.
MAX_QUEUED, MAX_QUEUED_BYTES = 8_192, 8 * 1024 * 1024
_LAST_ACK_RECEIVED = struct.Struct("I").unpack_from  # milliseconds, in the kernel's TCP_INFO
_LAST_ACK_OFFSET, _TCP_INFO_SIZE = 56, 104
_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": False,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
_SERVER: dict[str, Any] = {
    "capabilities": _CAPABILITIES,
    "product": "Ackflow",
    "version": __version__,
    "platform": "Python",
    "information": "speaks AMQP 0-9-1 as RabbitMQ does",
}
log = logging.getLogger("ackflow.amqp")


class State(Enum):
    HEADER = auto()
    START = auto()
    LOGIN = auto()
    TUNE = auto()
    OPEN = auto()
    RUNNING = auto()
    CLOSING = auto()
    CLOSED = auto()


class AmqpConnection(asyncio.Protocol):
    def __init__(self, server: "AmqpServer", registry: "Connections") -> None:
        self.server = server
        self.id = secrets.token_hex(8)
        self.name = "amqp"
        self.user = "guest"
        self.who: Token | None = None
        self.owned: set[str] = set()  # exclusive queues
        self.frame_max = FRAME_MAX
        self.writable = True
        self.wants_cancel = False
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._state = State.HEADER
        self._buffer = b""
        self._out: list[bytes] = []
        self._channels: dict[int, Channel] = {}
        self._ready: list[Channel] = []  # those that got something to do
        self._closing_channels: set[int] = set()
        self._channel_max = CHANNEL_MAX
        self._heartbeat = 0
        self._received_at = self._sent_at = time.monotonic()
        self._close_by = 0.0
        self._ended = False
        self._queued = self._queued_bytes = self._receiving = 0
        self._paused = False
        self.unread = Unread(server.app.in_transit)
        self.getting = asyncio.Lock()  # basic.get of one channel at a time

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.name = f"{peer[0]}:{peer[1]}"
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if (number := getattr(socket, option, None)) is not None:
                    sock.setsockopt(socket.IPPROTO_TCP, number, value)
        self._registry.add(self)
        self.server.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._state = State.CLOSED
        self._registry.remove(self)
        self.server.connections.discard(self)
        self._end()
        self.unread.resume()

    def data_received(self, data: bytes) -> None:
        self._received_at = time.monotonic()
        if self._state is State.CLOSED:
            return
        data = self._buffer + data if self._buffer else data
        try:
            try:
                at = self._read(data)
            finally:
                self._work()
        except AmqpError as error:
            at = len(data)
            self.close_by_server(error)
        except Exception:
            at = len(data)
            log.exception("a frame of %s could not be handled", self.name)
            self.close_by_server(AmqpError(541, "the server failed to handle a frame"))
        self._buffer = data[at:] if at < len(data) else b""

    def _work(self) -> None:
        """Let channels begin what arrived; they see all of it."""
        while self._ready:
            ready, self._ready = self._ready, []
            for channel in ready:
                channel.work()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False
        if self._transport is not None:
            self.unread.pause(self._transport)

    def resume_writing(self) -> None:
        self.writable = True
        self.unread.resume()
        self._ready += [one for one in self._channels.values() if one.has_work]
        self._work()
        for queue in {
            c.queue for channel in self._channels.values() for c in channel.consumers.values()
        }:
            if (pump := self.server.pumps.get(queue)) is not None:
                pump.kick()

    # frames

    def _read(self, data: bytes) -> int:
        """Handle the complete frames of some bytes; returns where the rest begins."""
        at = 0
        if self._state is State.HEADER:
            at = self._read_protocol_header(data)
        size = len(data)
        while size - at >= 7 and self._state is not State.CLOSED:
            kind, number, length = frames.unpack_start(data, at)
            if length > self.frame_max - OVERHEAD:
                raise AmqpError(501, f"a frame has {length} bytes, above the maximum")
            stop = at + 7 + length
            if stop >= size:
                break
            if data[stop] != END:
                raise AmqpError(501, "a frame does not end with the octet 206")
            if kind == METHOD and data.startswith(frames.PUBLISH_ID, at + 7):
                whole = self._receive_publication(number, data, at + 7, stop)
                if whole:
                    at = whole
                    continue
            self._receive(kind, number, data[at + 7 : stop])
            at = stop + 1
        return at

    def _receive_publication(self, number: int, data: bytes, at: int, stop: int) -> int:
        """Take a publication whose frames are all there; returns where they end, 0 if they are not."""
        channel = self._channels.get(number)
        if channel is None or not channel.takes_publications or self._state is not State.RUNNING:
            return 0
        content = frames.content_at(data, stop + 1, number, self.frame_max - OVERHEAD)
        if content is None:
            return 0
        try:
            method = frames.decode_method(data[at:stop])
            assert isinstance(method, frames.Publish)
            channel.receive_publication(method, content)
        except AmqpError as error:
            if error.hard:
                raise
            channel.fail_in_turn(error)
        return content.stop

    def _read_protocol_header(self, data: bytes) -> int:
        if not frames.PROTOCOL_HEADER.startswith(data[:8]):
            self.send(frames.PROTOCOL_HEADER)  # the version that is spoken here
            self._close_transport()
            return len(data)
        if len(data) < 8:
            return 0
        self._state = State.START
        self.send_method(0, Methods.Start(0, 9, _SERVER, "PLAIN", "en_US"))
        return 8

    def _receive(self, kind: int, number: int, data: bytes) -> None:
        if kind == HEARTBEAT:
            if number:
                raise AmqpError(501, "a heartbeat must be sent on channel 0")
            return
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(501, f"unknown frame type {kind}")
        if number == 0:
            if kind != METHOD:
                raise AmqpError(501, "channel 0 has no content")
            return self._receive_own(frames.decode_method(data))
        if self._state is State.CLOSING:
            return
        if self._state is not State.RUNNING:
            raise AmqpError(504, "expected 'connection.open'")
        self._receive_on_channel(kind, number, data)

    def _receive_on_channel(self, kind: int, number: int, data: bytes) -> None:
        channel = self._channels.get(number)
        if number in self._closing_channels:
            return self._receive_on_closing(kind, number, data)
        if channel is None:
            if kind == METHOD and isinstance(frames.decode_method(data), ChannelMethods.Open):
                return self._open_channel(number)
            raise AmqpError(504, "expected 'channel.open'")
        try:
            if kind != METHOD:
                channel.receive_content(data, kind == HEADER)
            else:
                method = frames.decode_method(data)
                if isinstance(method, ChannelMethods.Open):
                    raise AmqpError(504, "second 'channel.open' seen")
                if not isinstance(method, ChannelMethods.CloseOk):
                    channel.receive_method(method)
        except AmqpError as error:
            if error.hard:
                raise
            channel.fail_in_turn(error)

    def _receive_on_closing(self, kind: int, number: int, data: bytes) -> None:
        """Discard what a client sent before it saw that the server closed the channel."""
        if kind != METHOD:
            return
        method = frames.decode_method(data)
        if isinstance(method, ChannelMethods.CloseOk):
            self._closing_channels.discard(number)
        elif isinstance(method, ChannelMethods.Close):
            self._closing_channels.discard(number)
            self.send_method(number, ChannelMethods.CloseOk())

    def _open_channel(self, number: int) -> None:
        if number > self._channel_max:
            raise AmqpError(
                530, f"number of channels opened on connection ({self._channel_max}) is reached"
            )
        self._channels[number] = Channel(self, number)
        self.send_method(number, ChannelMethods.OpenOk())

    # negotiation

    def _receive_own(self, method: Any) -> None:
        state = self._state
        if isinstance(method, Methods.Close):
            self._state = State.CLOSING
            self._close_by = time.monotonic() + CLOSE_SECONDS
            self.server.background(self._close_by_client())
        elif isinstance(method, Methods.CloseOk):
            self._close_transport()
        elif state is State.CLOSING:
            return
        elif isinstance(method, Methods.StartOk) and state is State.START:
            self._state = State.LOGIN
            self.server.background(self._log_in(method))
        elif isinstance(method, Methods.TuneOk) and state is State.TUNE:
            self._tune(method)
        elif isinstance(method, Methods.Open) and state is State.OPEN:
            if method.virtual_host != "/":
                raise AmqpError(530, f"vhost {method.virtual_host} not found")
            self._state = State.RUNNING
            self.send_method(0, Methods.OpenOk())
        elif isinstance(method, Methods.UpdateSecret) and state is State.RUNNING:
            self.server.background(self._update_secret(method))
        elif not isinstance(method, Methods.Blocked | Methods.Unblocked):
            raise AmqpError(503, f"unexpected method {getattr(method, 'name', method)}")

    async def _log_in(self, method: Methods.StartOk) -> None:
        properties = method.client_properties or {}
        capabilities = properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.wants_cancel = bool(capabilities.get("consumer_cancel_notify"))
        if method.mechanism != "PLAIN":
            return self.close_by_server(
                AmqpError(503, f"unknown authentication mechanism '{method.mechanism}'", hard=True)
            )
        await self.server.begun()
        _, user, secret = (*_text(method.response).split("\0"), "", "", "")[:3]
        try:
            await self._authenticate(user, secret)
        except Unauthenticated:
            log.info("%s could not log in as %r", self.name, user)
            text = (
                "Login was refused using authentication mechanism PLAIN. "
                "For details see the broker logfile."
            )
            return self.close_by_server(AmqpError(403, text, hard=True))
        except AckflowError as error:
            return self.close_by_server(translated(error))
        if self._state is not State.LOGIN:
            return
        self.user = user
        self._state = State.TUNE
        self.send_method(0, Methods.Tune(CHANNEL_MAX, FRAME_MAX, HEARTBEAT_SECONDS))

    async def _authenticate(self, user: str, secret: str) -> None:
        auth = self.server.app.auth
        if not auth.fresh():
            await auth.refresh()
        self.who = auth.log_in(user, secret)

    async def _update_secret(self, method: Methods.UpdateSecret) -> None:
        try:
            await self._authenticate(self.user, _text(method.new_secret))
        except AckflowError:
            return self.close_by_server(
                AmqpError(530, "New secret was refused by one of the backends")
            )
        self.send_method(0, Methods.UpdateSecretOk())

    def _tune(self, method: Methods.TuneOk) -> None:
        frame_max = method.frame_max or FRAME_MAX
        if not FRAME_MIN <= frame_max <= FRAME_MAX:
            limit = "lower than the minimum" if frame_max < FRAME_MIN else "higher than the maximum"
            most = FRAME_MIN if frame_max < FRAME_MIN else FRAME_MAX
            raise AmqpError(
                530, f"negotiated frame_max = {frame_max} is {limit} allowed value ({most})"
            )
        self.frame_max = frame_max
        self._channel_max = min(method.channel_max or CHANNEL_MAX, CHANNEL_MAX)
        self._heartbeat = method.heartbeat or 0
        self._state = State.OPEN

    # sending

    def send_method(self, number: int, method: Frame) -> None:
        self.send(frames.encode(number, method))

    def send(self, data: bytes) -> None:
        """Write some frames, together with all others of this turn of the loop."""
        if not self._out:
            self.server.flush_later(self)
        self._out.append(data)

    def flush(self) -> None:
        """Write what was sent since the last time."""
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(b"".join(out))
            self._sent_at = time.monotonic()
            if not self.writable:
                self.unread.count()

    @property
    def takes_work(self) -> bool:
        """Whether channels may go on; else they wait until the client reads what it was sent."""
        return self.writable or self._state is not State.RUNNING or not self.unread.overdue

    # for channels

    def ready(self, channel: Channel) -> None:
        """Let a channel begin its work when all that has arrived is read."""
        self._ready.append(channel)

    def count_queued(self, n: int, size: int) -> None:
        """Count the methods that wait for their turn; a client that is too fast is not read."""
        self._queued += n
        self._queued_bytes += size
        self.server.app.in_transit.bytes += size
        full = self._queued > MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES
        if self._transport is None or self._transport.is_closing():
            return
        if full and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif self._paused and not full:
            self._paused = False
            self._transport.resume_reading()

    def count_received(self, size: int) -> None:
        """Count the bytes of incomplete messages and transactions, which nothing else limits."""
        self._receiving += size
        transit = self.server.app.in_transit
        transit.bytes += size
        if size > 0 and transit.is_full():
            raise AmqpError(506, transit.refusal().message)

    def allow(self, role: "Role", what: str, name: str) -> None:
        """Raise 403 unless the token of the client covers a queue or an exchange."""
        if self.who is not None and not self.who.may(role, name):
            raise refused(what, name, self.user)

    def unless_owned(self, name: str) -> AmqpError | None:
        """The error for removing messages from a queue that this connection does not own.

        None: the client may remove them whoever owns it, because it is an admin of the queue.
        """
        if self.who is None or self.who.may("admin", name) or name.startswith("amq.gen-"):
            return None
        return refused("queue", name, self.user)

    async def fail(self, channel: Channel, error: AmqpError) -> None:
        """Close a channel, or the connection, because of an error."""
        if error.hard:
            return self.close_by_server(error, channel.number)
        if channel.closed:
            return
        number = channel.number
        self._channels.pop(number, None)
        self._closing_channels.add(number)
        await channel.close()
        # The client may have closed the channel meanwhile, and opened it again.
        if self._state is State.RUNNING and number in self._closing_channels:
            self.send_method(
                number, ChannelMethods.Close(error.code, error.text, *divmod(error.method, 0x10000))
            )

    async def crash(self, channel: Channel, error: Exception) -> None:
        """Close the connection because of an error that is not the client's."""
        log.error("an operation of %s failed", self.name, exc_info=error)
        self.close_by_server(AmqpError(541, "the server failed"), channel.number)

    async def close_channel(self, channel: Channel) -> None:
        """Answer channel.close."""
        await channel.close()
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
        self.send_method(channel.number, ChannelMethods.CloseOk())

    # closing

    def close_by_server(self, error: AmqpError, number: int = 0) -> None:
        """Send connection.close, and wait a little for its answer."""
        if self._state in (State.CLOSING, State.CLOSED):
            return
        started = self._state is not State.HEADER
        self._state = State.CLOSING
        self._close_by = time.monotonic() + CLOSE_SECONDS
        if error.code not in (320, 403):
            log.info("%s: %s", self.name, error.text)
        self._end()
        if started:
            self.send_method(
                0, Methods.Close(error.code, error.text, *divmod(error.method, 0x10000))
            )
        else:
            self._close_transport()

    async def _close_by_client(self) -> None:
        """Answer connection.close when what the client sent before it is done."""
        if not self._ended:
            self._ended = True
            await self._end_channels()
        self.send_method(0, Methods.CloseOk())
        self._close_transport()

    def _close_transport(self) -> None:
        self.flush()
        self._state = State.CLOSED
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _end(self) -> None:
        """Give back what the client holds; called once, when the connection is over."""
        if self._ended:
            return
        self._ended = True
        self.server.background(self._end_channels())

    async def _end_channels(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        try:
            for channel in channels:
                await channel.finish()
                await channel.close()
        finally:
            self.server.app.in_transit.bytes -= self._receiving
            self._receiving = 0
            if self.owned:
                # No client knows its name now. If this fails, `remove_abandoned` removes it.
                await self.server.app.do(remove_owned, True, self.id, list(self.owned))

    # called once in a while

    @property
    def logged_in(self) -> bool:
        return self._state in (State.TUNE, State.OPEN, State.RUNNING)

    def tick(self, now: float) -> None:
        """Send a heartbeat if one is due, and end a connection whose peer is gone."""
        if self._transport is None:
            return
        if self._state is State.CLOSING and now >= self._close_by:
            self._transport.abort()
        elif self._heartbeat and self._state is State.RUNNING:
            if now - self._sent_at >= self._heartbeat / 2 and not self._out:
                self.send(frames.HEARTBEAT_FRAME)
            if now - self._received_at > 2 * self._heartbeat and not self._peer_answers():
                log.info("missed heartbeats from client %s", self.name)
                self._transport.abort()
                return
        if self.unread.is_stalled(now):
            log.warning(
                "%s does not read its messages, and other clients need the memory: disconnected",
                self.name,
            )
            self._transport.abort()

    def _peer_answers(self) -> bool:
        """Whether the machine of the client acknowledged something, though the client is silent."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        option = getattr(socket, "TCP_INFO", None)
        if sock is None or option is None:
            return False
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO_SIZE)
        except OSError:
            return False
        return bool(_LAST_ACK_RECEIVED(info, _LAST_ACK_OFFSET)[0] <= 2_000 * self._heartbeat)

    # called by the registry of connections

    @property
    def idle(self) -> bool:
        return self._queued == 0

    def close_if_idle(self) -> None:
        self.close_by_server(
            AmqpError(320, "broker forced connection closure with reason 'shutdown'")
        )

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def waits_for_client(self) -> tuple[Hashable, bool] | None:
        """What it waits for the client to do during the negotiation; see `Connections`."""
        if self._state in (State.RUNNING, State.CLOSING, State.CLOSED, State.LOGIN):
            return None
        return ("negotiate", self.id), False

    def write_overdue(self, _: float) -> bool:
        return False

    def end_wait(self, _: float) -> None:
        self.abort()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
