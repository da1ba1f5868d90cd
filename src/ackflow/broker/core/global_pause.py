"""Maintenance: while it lasts nothing is handed out of any queue; pushing and settling go on."""

from msgspec import Struct, json, msgpack

from ...store.tx import Tx


class GlobalPause(Struct):
    """Who asked for it: `pushes` since when pushed messages are held back, `pops` a plain pause."""

    pops: bool = False
    pushes: int | None = None

    @property
    def on(self) -> bool:
        return self.pops or self.pushes is not None


_decode = json.Decoder(GlobalPause).decode
_decode_old = msgpack.Decoder(GlobalPause).decode  # of databases from before it was text


def is_paused(tx: Tx) -> bool:
    """Whether hand-outs are off; read once and kept, as every pop asks."""
    if tx.cache.halted is None:
        tx.cache.halted = get(tx).on
    return tx.cache.halted


def get(tx: Tx) -> GlobalPause:
    found = tx.value("get_meta", "maintenance")
    if isinstance(found, bytes):
        return _decode_old(found)
    return GlobalPause() if found is None else _decode(found)


def switch(tx: Tx, *, pops: bool | None = None, pushes: bool | None = None) -> GlobalPause:
    """Turn either switch; what is not given stays. Waiting pops are told."""
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
    """How many messages were pushed since pushes are held back."""
    since = get(tx).pushes
    return 0 if since is None else pushed_since(tx, [queue.name for queue in tx.queues()], since)


def pushed_since(tx: Tx, queues: list[str], since: int) -> int:
    """How many of the stored messages of these queues were pushed from a time on."""
    found = [queue for name in queues if (queue := tx.queue(name))]
    return sum(int(tx.value("pushed_since", queue.id, since)) for queue in found)
