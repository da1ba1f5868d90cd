"""Test the processors and tasks of a worker: in memory, with a clock that the test moves.

from ackflow.testing import Harness

with Harness(worker) as h:
    send_mail.push("a@example.org")
    h.drain()
    h.assert_processed_status(ACK, queue="mail")
"""

from .harness import ANY, Harness, Processed

__all__ = ["ANY", "Harness", "Processed"]
