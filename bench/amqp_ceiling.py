"""An AMQP server that answers at once and stores nothing: how fast a client can be at all.

`python -m bench.amqp_ceiling PORT`. It confirms a window with one frame, and any other message at
once; it delivers the same message again and again, and tops a consumer up when half of its prefetch
is acknowledged. The name of the queue says whether the program sends windows.
"""

import asyncio
import struct
import sys
from typing import Any, cast

import uvloop
from pamqp import commands, frame
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue

from .amqp_sides import BODY, WINDOW
from .peers import HOST

_START = struct.Struct(">BHI")
_TAG = struct.Struct(">QB")
_HEADER = struct.pack(">HHQ", 60, 0, len(BODY)) + b"\x10\x00\x02"  # delivery mode 2
PUBLISH, ACK, DELIVER = b"\x00\x3c\x00\x28", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x3c"
PROPERTIES: dict[str, Any] = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}


def _frame(kind: int, payload: bytes) -> bytes:
    return _START.pack(kind, 1, len(payload)) + payload + b"\xce"


class Ceiling(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""
        self._greeted = False
        self._published = self._confirmed = 0
        self._window = 1
        self._consumer = ""
        self._prefetch = 1
        self._delivered = self._unacked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        data, at = self._buffer + data, 0
        if not self._greeted:
            self._greeted, at = True, 8
            self._send(0, Connection.Start(0, 9, PROPERTIES, "PLAIN", "en_US"))
        while len(data) - at >= 7:
            kind, number, length = _START.unpack_from(data, at)
            if at + 8 + length > len(data):
                break
            if kind == 1:
                self._receive(number, data[at + 7 : at + 7 + length])
            at += 8 + length
        self._buffer = data[at:]
        if self._published - self._confirmed >= self._window:
            tag = _TAG.pack(self._published, self._published - self._confirmed > 1)
            self._confirmed = self._published
            self._transport.write(_frame(1, ACK + tag))
        if self._consumer and 2 * self._unacked <= self._prefetch:
            self._deliver()

    def _receive(self, number: int, method: bytes) -> None:
        if method.startswith(PUBLISH):
            self._published += 1
            self._window = WINDOW if b"windows" in method else 1
        elif method.startswith(ACK):
            tag, multiple = _TAG.unpack_from(method, 4)
            self._unacked = self._delivered - tag if multiple else self._unacked - 1
        else:
            self._answer(number, method)

    def _deliver(self) -> None:
        tag = self._consumer.encode()
        parts = []
        while self._unacked < self._prefetch:
            self._delivered += 1
            self._unacked += 1
            names = bytes([len(tag)]) + tag + _TAG.pack(self._delivered, 0) + b"\x00\x01q"
            parts += [_frame(1, DELIVER + names), _frame(2, _HEADER), _frame(3, BODY)]
        self._transport.write(b"".join(parts))

    def _answer(self, number: int, data: bytes) -> None:
        method = commands.INDEX_MAPPING[struct.unpack_from(">I", data)[0]]()
        method.unmarshal(data[4:])
        answer: Any = None
        match method:
            case Connection.StartOk():
                answer = Connection.Tune(2047, 131_072, 60)
            case Connection.Open():
                answer = Connection.OpenOk()
            case Connection.Close():
                answer = Connection.CloseOk()
            case Channel.Open():
                answer = Channel.OpenOk()
            case Channel.Close():
                answer = Channel.CloseOk()
            case Confirm.Select():
                answer = Confirm.SelectOk()
            case Queue.Declare():
                answer = Queue.DeclareOk(method.queue, 0, 0)
            case Basic.Qos():
                self._prefetch = method.prefetch_count or 1
                answer = Basic.QosOk()
            case Basic.Consume():
                self._consumer = method.consumer_tag or "consumer"
                answer = Basic.ConsumeOk(self._consumer)
            case Basic.Cancel():
                self._consumer = ""
                answer = Basic.CancelOk(method.consumer_tag)
        if answer is not None:
            self._send(number, answer)

    def _send(self, number: int, method: frame.FrameTypes) -> None:
        self._transport.write(frame.marshal(method, number))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Ceiling, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
