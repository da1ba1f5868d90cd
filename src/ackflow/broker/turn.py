"""The turn of upkeep: of all processes on a database, one runs it."""

from ..clock import micros
from ..errors import NotMyTurn
from ..store.tx import Tx

TURN_SECONDS = 10.0


def take_turn(tx: Tx, name: str) -> None:
    """Take or extend the turn; raises NotMyTurn while another broker has it."""
    holder, until = turn(tx)
    # A turn that ends later than possible was taken while the clock was ahead.
    if holder != name and tx.now < until <= tx.now + micros(2 * TURN_SECONDS):
        raise NotMyTurn()
    tx.run("put_meta", "upkeep", f"{name} {tx.now + micros(TURN_SECONDS)}")


def leave_turn(tx: Tx, name: str) -> None:
    if turn(tx)[0] == name:
        tx.run("put_meta", "upkeep", f"{name} 0")


def write_clock(_: Tx) -> None:
    """Do nothing: every transaction writes the pending clock correction itself."""


def turn(tx: Tx) -> tuple[str, int]:
    """Return the broker that has the turn, and the end of the turn."""
    found = tx.value("get_meta", "upkeep")
    holder, until = str(found).split(" ") if found else ("", "0")
    return holder, int(until)
