"""A process whose main thread is interrupted by signals repeatedly while six threads push.

Prints how many interrupts it saw, how many pushes were confirmed, and how many messages are stored.
"""

import os
import signal
import sys
import threading
import time

import ackflow


class Interrupt(Exception):
    pass


def raise_interrupt(*_: object) -> None:
    raise Interrupt


def main(path: str, seconds: float) -> None:
    q = ackflow.connect(path)
    end = time.monotonic() + seconds
    confirmed = [0] * 6

    def push(index: int) -> None:
        while time.monotonic() < end:
            q.push("jobs", 1)
            confirmed[index] += 1

    def interrupt() -> None:
        while time.monotonic() < end - 0.2:
            time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, raise_interrupt)
    threads = [threading.Thread(target=push, args=[i]) for i in range(6)]
    threads.append(threading.Thread(target=interrupt))
    interrupts = own = 0
    started = False
    while time.monotonic() < end:
        try:
            if not started:
                started = True
                for thread in threads:
                    thread.start()
            while time.monotonic() < end:
                q.push("jobs", 2)
                own += 1
        except Interrupt:
            interrupts += 1
    for thread in threads:
        thread.join()
    stored = q.queue_stats("jobs").messages
    print(interrupts, sum(confirmed), own, stored, flush=True)
    q.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
