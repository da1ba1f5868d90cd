"""The endpoints of a bridge, by their addresses."""

from msgspec import Struct

from ...errors import InvalidArgument
from ...options import QUEUE_MODE
from ...session.connect import connect
from ...session.session import Session
from .endpoints import Source, Target, is_amqp
from .over_session import SessionSource, SessionTarget


class Ends(Struct):
    """Two queues: `amqp://` is RabbitMQ or Ackflow's AMQP, any other address a session's.

    `batch`: messages per batch. `token` and `ca_file` are for servers of Ackflow.
    """

    source: str
    queue: str
    to: str
    to_queue: str
    group: str = QUEUE_MODE
    batch: int = 500
    token: str | None = None
    ca_file: str | None = None

    def open(self) -> tuple[Source, Target]:
        """Create the endpoints; those that use AMQP connect later, in the event loop."""
        if (self.source, self.queue) == (self.to, self.to_queue):
            raise InvalidArgument("the source and the target are the same queue")
        return self._source(), self._target()

    def _source(self) -> Source:
        if is_amqp(self.source):
            from .over_amqp import AmqpSource

            return AmqpSource(self.source, self.queue, self.batch)
        return SessionSource(self._session(self.source), self.queue, self.group, self.batch)

    def _target(self) -> Target:
        if is_amqp(self.to):
            from .over_amqp import AmqpTarget

            return AmqpTarget(self.to, self.to_queue)
        return SessionTarget(self._session(self.to), self.to_queue)

    def _session(self, address: str) -> Session:
        return connect(address, token=self.token, ca_file=self.ca_file)
