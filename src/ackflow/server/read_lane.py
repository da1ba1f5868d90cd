"""The read lane: reads whose cost grows with the data run here, few at a time.

Probes, pushes, pops and acks use other threads, so that they never wait behind such a read. The
number of reads that wait is limited, and with it the memory of their results.

A thread that waits for the GIL gets it after the switch interval, by default 5 ms. A push takes the
GIL a dozen times, so the interval is shortened while reads run.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .limits import ServerBusy

T = TypeVar("T")
THREADS = 2
RETRY_SECONDS = 1
SWITCH_SECONDS = 0.0002


class ReadLane:
    """A few threads and a bounded queue; used on one event loop."""

    _running = 0  # in all lanes of the process
    _usual_switch = 0.0

    def __init__(self, waiting: int, threads: int = THREADS) -> None:
        self._most = waiting + threads
        self._waiting = waiting
        self._reads = 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ackflow-lane")

    def run(self, read: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a read in the lane; raises ServerBusy if too many others wait."""
        if self._reads >= self._most:
            raise ServerBusy(
                f"{self._waiting:,} requests of this kind wait already; try again later",
                retry_after=RETRY_SECONDS,
            )
        done = asyncio.get_running_loop().run_in_executor(self._threads, read)
        self._reads += 1
        if not ReadLane._running:
            ReadLane._usual_switch = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_SECONDS, ReadLane._usual_switch))
        ReadLane._running += 1
        done.add_done_callback(self._finished)
        return done

    def _finished(self, _: "asyncio.Future[T]") -> None:
        self._reads -= 1
        ReadLane._running -= 1
        if not ReadLane._running:
            sys.setswitchinterval(ReadLane._usual_switch)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
