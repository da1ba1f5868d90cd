"""The global pause: no queue delivers messages; pushing and settling continue."""

from msgspec import Struct, json, msgpack

from ....store.tx import Tx


class GlobalPause(Struct):
    """The pause: `pops` is a plain one, `pushes` the time since which pushes are held back."""

    pops: bool = False
    pushes: int | None = None

    @property
    def on(self) -> bool:
        return self.pops or self.pushes is not None


_decode = json.Decoder(GlobalPause).decode
_decode_old = msgpack.Decoder(GlobalPause).decode  # older databases store msgpack


def is_paused(tx: Tx) -> bool:
    """Return whether delivery is paused; cached, because every pop checks it."""
    if tx.cache.halted is None:
        tx.cache.halted = get(tx).on
    return tx.cache.halted


def get(tx: Tx) -> GlobalPause:
    found = tx.value("get_meta", "maintenance")
    if isinstance(found, bytes):
        return _decode_old(found)
    return GlobalPause() if found is None else _decode(found)


def switch(tx: Tx, *, pops: bool | None = None, pushes: bool | None = None) -> GlobalPause:
    """Set one or both switches; None leaves a switch unchanged. Wakes waiting pops."""
    state = get(tx)
    if pops is not None:
        state.pops = pops
    if pushes is not None:
        state.pushes = (state.pushes or tx.now) if pushes else None
    tx.run("put_meta", "maintenance", json.encode(state).decode())
    tx.cache.halted = None
    tx.touched.update(queue.name for queue in tx.queues())
    return state


def count_held_back(tx: Tx) -> int:
    """Count the messages that were pushed since pushes have been held back."""
    since = get(tx).pushes
    return 0 if since is None else pushed_since(tx, [queue.name for queue in tx.queues()], since)


def pushed_since(tx: Tx, queues: list[str], since: int) -> int:
    """Count the stored messages of these queues that were pushed since a time."""
    found = [queue for name in queues if (queue := tx.queue(name))]
    return sum(int(tx.value("pushed_since", queue.id, since)) for queue in found)
