"""The state machine on databases that two sessions share."""

from ..postgres import server as postgres
from .machine import BrokerMachine


class FileMachine(BrokerMachine):
    sessions_wanted = 2

    def place(self) -> str:
        return str(self.folder / "test.db")


class PostgresMachine(BrokerMachine):
    sessions_wanted = 2
    url = ""

    def place(self) -> str:
        postgres.empty(self.url)
        return self.url
