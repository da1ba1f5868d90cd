"""A bridge moves the messages of a queue to a queue elsewhere: RabbitMQ, a file, a server."""

from .addresses import Ends
from .run import Bridge, Counts, Rate

__all__ = ["Bridge", "Counts", "Ends", "Rate"]
