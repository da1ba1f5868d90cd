"""Use a session, fork, and use it again in the child and in the parent.

python forked.py plain|awaited URL
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import ackflow
from ackflow import AckflowError, aio
from ackflow.pushpop import PushPopActor


def refusal(act: Callable[[], object]) -> str:
    try:
        act()
    except AckflowError as error:
        return f"{error.code}: {error}"
    return "allowed"


def tell(refusals: dict[str, str]) -> None:
    for name, said in refusals.items():
        print("child", name, said, flush=True)


def plain(url: str) -> None:
    q = ackflow.connect(url)
    q.push("jobs", ["one", "two"])
    held = q.pop("jobs", group="g")[0]
    gathering = q.buffer(seconds=3600)
    gathering.push("jobs", "gathered")
    with q.consume("other", print) as loop:
        child = os.fork()
        if child == 0:
            calls: dict[str, Callable[[], object]] = {
                "push": lambda: q.push("jobs", "never"),
                "pop": lambda: q.pop("jobs", group="g"),
                "ack": held.ack,
                "in_progress": held.in_progress,
                "settle": lambda: q.settle([(held, "ack")]),
                "lease": lambda: q.lease(str(held.token)).ack(),
                "transaction": lambda: q.transaction().ack(held).commit(),
                "queues": q.queues,
                "consume": lambda: q.consume("jobs", print, group="g"),
                "buffer": lambda: q.buffer(),
                "gathering": lambda: gathering.push("jobs", "never"),
                "flush": gathering.flush,
                "fluent": lambda: q.queue("jobs").pop(),
            }
            tell({name: refusal(call) for name, call in calls.items()})
            loop.close()
            q.close()
            print("child connect", refusal(lambda: ackflow.connect(url).pop("jobs", group="g")[0]))
            sys.exit()  # as a program ends: what is to be done at exit is done
        os.waitpid(child, 0)
    held.ack(confirm=True)
    gathering.flush()
    print("parent done", q.group_stats("jobs", "g").counts.done)
    print("parent stored", [m.data for m in q.browse("jobs").items])
    q.close()


async def opened(url: str) -> tuple[aio.Session, aio.Message]:
    q = await aio.connect(url)
    await q.push("jobs", ["one", "two"])
    return q, (await q.pop("jobs", group="g"))[0]


async def refusals(q: aio.Session, held: aio.Message) -> dict[str, str]:
    async def consume() -> None:
        await q.consume("jobs", print, group="g")

    async def gather() -> None:
        q.buffer()

    actor = PushPopActor(q, "jobs")
    calls: dict[str, Callable[[], Any]] = {
        "push": lambda: q.push("jobs", "never"),
        "pop": lambda: q.pop("jobs", group="g"),
        "ack": held.ack,
        "in_progress": held.in_progress,
        "queues": q.queues,
        "consume": consume,
        "buffer": gather,
        "actor": lambda: actor.PopWithAck(),
    }
    found = {}
    for name, call in calls.items():
        try:
            await call()
            found[name] = "allowed"
        except AckflowError as error:
            found[name] = f"{error.code}: {error}"
    await q.close()
    return found


async def after(q: aio.Session, held: aio.Message) -> None:
    await held.ack()
    print("parent done", (await q.group_stats("jobs", "g")).counts.done)
    await q.close()


def awaited(url: str) -> None:
    loop = asyncio.new_event_loop()
    q, held = loop.run_until_complete(opened(url))
    child = os.fork()
    if child == 0:
        tell(asyncio.run(refusals(q, held)))
        os._exit(0)  # the loop of the parent is not ours to end
    os.waitpid(child, 0)
    loop.run_until_complete(after(q, held))
    loop.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
