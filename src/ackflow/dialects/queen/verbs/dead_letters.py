"""The dead letters of several queues as one list."""

from msgspec import Struct

from ....broker.core import dead_letters
from ....broker.requests import DeadFilter
from ....errors import NotFound
from ....ids import PartitionId
from ....model import DeadLetter
from ....store.tx import Tx


class Labelled(Struct):
    """A dead letter with the id of its partition and the labels of its queue."""

    letter: DeadLetter
    partition: PartitionId
    namespace: str
    task: str


def letters(
    tx: Tx, queues: list[str], which: DeadFilter, limit: int, offset: int
) -> tuple[list[Labelled], int]:
    """Return a page of the dead letters of these queues, newest first, and how many there are.

    A queue, group or partition that does not exist has none. Of large letters it returns fewer.
    """
    there = {name: n for name in queues if (n := _count(tx, which, name))}
    total = sum(there.values())
    found: list[tuple[int, int]] = []
    for name in there if offset < total else ():
        which.queue = name
        found += dead_letters.newest(tx, which, limit + offset)
    found.sort(reverse=True)
    rows = dead_letters.read(tx, found[offset : offset + limit])
    names = {queue.id: queue.name for name in there if (queue := tx.queue(name))}
    letters = [dead_letters.letters(tx, names[row.queue], [row])[0] for row in rows]
    return [_labelled(tx, letter) for letter in letters], total


def _count(tx: Tx, which: DeadFilter, queue: str) -> int:
    which.queue = queue
    try:
        return dead_letters.count(tx, which)
    except NotFound:
        return 0


def _labelled(tx: Tx, letter: DeadLetter) -> Labelled:
    queue = tx.queue(letter.queue)
    assert queue is not None
    home = tx.partition(queue.id, letter.partition)
    assert home is not None
    return Labelled(letter, home.id, queue.options.namespace, queue.options.task)
