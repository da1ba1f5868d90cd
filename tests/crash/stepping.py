"""A process whose wall clock is set back by an hour while it works; prints its results as JSON.

    python stepping.py FILE

The wall clock is replaced before Ackflow is imported; the monotonic clock and all waits are real.
"""

import json
import sys
import threading
import time

_wall, _back = time.time_ns, 0
time.time_ns = lambda: _wall() - _back

import ackflow  # noqa: E402
from ackflow.store.tx import Tx  # noqa: E402


def took(call) -> float:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    call()
    return time.monotonic() - began


def expired(tx: Tx) -> int:
    """Return how many leases were expired."""
    return sum(n for _, name, n in tx.all("tallies") if name == "leases_expired")


def main(path: str) -> None:
    global _back
    seen: dict[str, float] = {}
    with ackflow.connect(path) as q:
        q.push("q", "a")
        q.pop("q", lease_seconds=1)
        waiting = threading.Thread(
            target=lambda: seen.update(wait=took(lambda: q.pop("none", wait=1))), daemon=True
        )
        waiting.start()
        time.sleep(0.2)
        _back = 3600 * 1_000_000_000
        waiting.join(10)
        until = time.monotonic() + 10
        while not q.broker.look(expired) and time.monotonic() < until:  # type: ignore[attr-defined]
            time.sleep(0.05)
        seen["upkeep"] = q.broker.look(expired)  # type: ignore[attr-defined]
        with ackflow.connect(path) as later:
            seen["lease"] = took(lambda: later.pop("q", lease_seconds=1, wait=5))
            seen["again"] = len(q.pop("q", wait=5))
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
