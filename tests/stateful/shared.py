"""The state machine on databases that two sessions and a connection of the program share."""

from typing import Any

import apsw
import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import rule

import ackflow

from ..postgres import server as postgres
from .cases import DELAYS, LANES
from .machine import BrokerMachine
from .model import LaneKey


class SharedMachine(BrokerMachine):
    """Two sessions, and a connection of the program that pushes in transactions of its own."""

    sessions_wanted = 2
    own: Any = None

    def teardown(self) -> None:
        if self.own is not None:
            self.own.close()
        super().teardown()

    @rule(lane=LANES, count=st.integers(1, 3), delay=DELAYS, commits=st.booleans())
    def push_within(self, lane: LaneKey, count: int, delay: float | None, commits: bool) -> None:
        lane, data = self.lane(lane), [self.number() for _ in range(count)]
        if self.own is None:
            self.own = self.connect()
        self.own.execute("begin")
        receipt = ackflow.within(self.own, clock=self.clock).push(
            lane.queue, data, partition=lane.partition, priority=lane.priority, delay=delay
        )
        self.own.execute("commit" if commits else "rollback")
        for value, id in zip(data, receipt, strict=True) if commits else ():
            self.pushed(self.model.push(lane, value, delay or 0.0, None)[0], id)

    def connect(self) -> Any:
        raise NotImplementedError


class FileMachine(SharedMachine):
    def place(self) -> str:
        return str(self.folder / "test.db")

    def connect(self) -> Any:
        return apsw.Connection(self.place())


class PostgresMachine(SharedMachine):
    url = ""

    def place(self) -> str:
        postgres.empty(self.url)
        return self.url

    def connect(self) -> Any:
        return psycopg.connect(self.url, autocommit=True)
