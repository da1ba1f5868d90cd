"""Limits of the server, and the memory that requests and responses in transit may hold."""

from msgspec import Struct

from ..errors import AckflowError
from ..options import MAX_BATCH

MAX_HEAD_BYTES = 64 * 1024


class Limits(Struct, frozen=True, kw_only=True):
    """The most that the server accepts of one client, and of all together.

    `in_transit_bytes` limits the bodies that are partly received and the responses that are partly
    sent. `read_seconds` is the time to receive a request, and to send each part of a response.
    """

    body_bytes: int = 64 * 1024 * 1024
    batch: int = MAX_BATCH
    waiting_pops: int = 10_000
    waiting_reads: int = 32
    connections: int = 20_000
    in_transit_bytes: int = 256 * 1024 * 1024
    read_seconds: float = 60.0
    keep_alive_seconds: float = 75.0


class ServerBusy(AckflowError):
    """The server does as much for other clients as its limits allow; try again later."""

    code = "server_busy"
    status = 503


class InTransit:
    """Counts the bytes of requests and responses that are held while a client sends or reads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0

    def is_full(self, more: int = 0) -> bool:
        """Return whether clients would hold too much memory with so many bytes more.

        A response of any size is possible while others hold less than a quarter.
        """
        return self.bytes > max(self.most - more, self.most // 4)

    def refusal(self) -> ServerBusy:
        """The error for a request that is refused because of that."""
        return ServerBusy(
            f"more than {self.most:,} bytes wait for slow clients; try again later", retry_after=1
        )
