"""Ackflow with default durability and without retention of acked messages."""

from collections.abc import Sequence
from pathlib import Path

import ackflow

from .measure import Json

NAME = "bench"


class Ackflow:
    name = NAME

    def __init__(self, path: Path) -> None:
        self.session = ackflow.connect(path / "ackflow.db")
        self.session.configure(self.name, keep_seconds=0)

    def push(self, messages: Sequence[Json]) -> None:
        self.session.push(self.name, messages)

    def take(self, batch: int) -> ackflow.Batch[ackflow.Message]:
        taken = self.session.pop(self.name, batch=batch)
        _ = [message.data for message in taken]
        return taken

    def ack(self, taken: ackflow.Batch[ackflow.Message]) -> None:
        self.session.ack(taken)

    def ack_each(self, taken: ackflow.Batch[ackflow.Message], order: Sequence[int]) -> None:
        for index in order:
            taken[index].ack()

    def catch_up(self) -> None:
        """Trim all acked messages."""
        while self.session.upkeep().trimmed:
            pass

    def close(self) -> None:
        self.session.close()
