"""Errors that only Queen distinguishes."""

from ...errors import AlreadySettled


class AlreadyCommitted(AlreadySettled):
    """The message is already committed in this group."""
