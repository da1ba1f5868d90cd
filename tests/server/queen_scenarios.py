"""What programs do with Queen's own Python client. Run as a process of its own:

    queen_scenarios.py URL SCENARIO [SCENARIO ...]

with the folder of a client first on the path. Runs the scenarios at the same time, and prints what
happened, or the error, by scenario as one line of JSON.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from queen import Queen, Stream  # type: ignore[import-not-found]

Scenario = Callable[[Queen], Awaitable[Any]]


def reading(builder: Any) -> Any:
    """Consume until nothing has come for a moment."""
    return builder.timeout_millis(300).idle_millis(2_500)  # longer than a busy machine pauses


def data(messages: Any) -> list[Any]:
    return [message["data"] for message in (messages if isinstance(messages, list) else [messages])]


async def push(client: Queen) -> Any:
    """Pushes with ids of its own, duplicates, callbacks, empty payloads and a buffer."""
    seen: dict[str, int] = {}

    def note(kind: str) -> Any:
        async def callback(items: Any, *_: Any) -> None:
            seen[kind] = seen.get(kind, 0) + len(items)

        return callback

    queue = client.queue("pushed")
    for _ in range(2):
        await (
            queue.push([{"data": 1, "transactionId": "a"}, {"data": None, "transactionId": "b"}])
            .on_success(note("queued"))
            .on_duplicate(note("duplicate"))
        )
    await queue.push({"data": {"n": 3}})
    buffered = client.queue("pushed").buffer({"message_count": 10, "time_millis": 50})
    for n in range(4, 8):
        await buffered.push({"data": n})
    await client.flush_all_buffers()
    return {"seen": seen, "read": data(await client.queue("pushed").batch(20).wait(False).pop())}


async def pop_and_ack(client: Queen) -> Any:
    """Pops by hand: ack, nack with a reason, a repeated and a stale ack, a list with verdicts."""
    await client.queue("popped").push([{"data": n} for n in range(6)])

    async def pop(n: int) -> Any:
        return await client.queue("popped").group("g").batch(n).wait(False).pop()

    group = {"group": "g"}
    (first,) = await pop(1)
    done = await client.ack(first, True, group)
    again = await client.ack(first, True, group)
    (second,) = await pop(1)
    failed = await client.ack(second, False, {**group, "error": "broken"})
    stale = await client.ack(second, True, group)
    rest = await pop(9)
    for message, verdict in zip(rest, [True, False, "retry", "dlq", True], strict=True):
        message["_status"] = verdict
    many = await client.ack(rest, True, group)
    return {
        "done": [done["success"], done["message"], again["noop"]],
        "failed": [failed["success"], failed["message"], stale["success"]],
        "retry": rest[0]["retryCount"],
        "many": [one["message"] for one in many["results"]],
        "left": data(await pop(9)),
    }


async def consume_single(client: Queen) -> Any:
    """One message at a time, to a handler that fails once."""
    await client.queue("single").push([{"data": n} for n in range(4)])
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.extend(data(message))
        if seen == [0, 1]:
            raise ValueError("not yet")

    await reading(client.queue("single").group("g").batch(1)).consume(handle)
    return seen


async def consume_batch(client: Queen) -> Any:
    """A list at a time; a batch that fails comes again whole."""
    await client.queue("batch").push([{"data": n} for n in range(6)])
    seen: list[Any] = []

    async def handle(messages: Any) -> None:
        seen.append(data(messages))
        if len(seen) == 1:
            raise ValueError("not yet")

    await reading(client.queue("batch").group("g").batch(4)).consume(handle)
    return seen


async def consume_each(client: Queen) -> Any:
    """A batch handed over one by one; what follows a failure is not stranded."""
    await client.queue("each").push([{"data": n} for n in range(5)])
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if seen.count(1) == 1 and message["data"] == 1:
            raise ValueError("not yet")

    await reading(client.queue("each").group("g").batch(5).each()).consume(handle)
    return seen


async def consume_unsized(client: Queen) -> Any:
    """A consumer that says nothing of batches."""
    await client.queue("unsized").push([{"data": n} for n in range(5)])
    seen: list[Any] = []

    async def handle(messages: Any) -> None:
        seen.extend(data(messages))

    await reading(client.queue("unsized").group("g")).consume(handle)
    return seen


async def consume_concurrently(client: Queen) -> Any:
    """Many workers on many partitions: every message once, each partition in its order."""
    for partition in range(4):
        items = [{"data": [partition, n]} for n in range(10)]
        await client.queue("many").partition(f"p{partition}").push(items)
    seen: list[Any] = []

    async def handle(messages: Any) -> None:
        await asyncio.sleep(0.005)
        seen.extend(data(messages))

    await reading(client.queue("many").group("g").batch(3).concurrency(5)).consume(handle)
    orders = [[n for p, n in seen if p == partition] for partition in range(4)]
    return {"count": len(seen), "ordered": all(order == sorted(order) for order in orders)}


async def callbacks(client: Queen) -> Any:
    """Acks and nacks made by callbacks."""
    await client.queue("callbacks").push([{"data": n} for n in range(3)])
    said: list[Any] = []

    async def handle(message: Any) -> Any:
        if message["data"] == 1:
            raise ValueError("never")
        return message["data"] * 10

    async def success(message: Any, result: Any) -> None:
        said.append(["ok", result, (await client.ack(message, True, {"group": "g"}))["success"]])

    async def error(message: Any, problem: Exception) -> None:
        answer = await client.ack(message, "dlq", {"group": "g", "error": str(problem)})
        said.append(["error", message["data"], answer["success"]])

    builder = reading(client.queue("callbacks").group("g").batch(1).auto_ack(False))
    await builder.consume(handle).on_success(success).on_error(error)
    letters = await client.queue("callbacks").dlq("g").get()
    return {"said": said, "dead": [one["errorMessage"] for one in letters["messages"]]}


async def renewal(client: Queen) -> Any:
    """A handler that takes longer than its lease, which is renewed meanwhile."""
    await client.queue("slow").config({"lease_time": 1}).create()
    await client.queue("slow").push({"data": 1})
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.extend(data(message))
        await asyncio.sleep(1.6)

    builder = client.queue("slow").group("g").batch(1).renew_lease(True, 200).concurrency(2)
    await builder.timeout_millis(300).idle_millis(2500).consume(handle)
    await client.queue("slow").push({"data": 2})
    (held,) = await client.queue("slow").group("g").batch(1).wait(False).pop()
    renewed = await client.renew(held)
    await client.ack(held, True, {"group": "g"})
    return {
        "seen": seen,
        "renewed": [renewed["success"], bool(renewed["newExpiresAt"])],
        "over": (await client.renew(held)).get("newExpiresAt"),
    }


async def transactions(client: Queen) -> Any:
    """Ack and push together; with a stale message neither happens."""
    await client.queue("in").push([{"data": n} for n in range(2)])
    first, second = await client.queue("in").batch(2).wait(False).pop()
    answer = await (
        client.transaction().ack(first).queue("out").partition("p").push([{"data": "one"}]).commit()
    )
    await client.ack(second, "retry")
    error = ""
    try:
        await client.transaction().ack(second).queue("out").push([{"data": "two"}]).commit()
    except Exception as refused:
        error = str(refused)
    return {
        "success": answer["success"],
        "types": [one["type"] for one in answer["results"]],
        "error": error,
        "out": data(await client.queue("out").partition("p").batch(9).wait(False).pop()),
        "in": data(await client.queue("in").batch(9).wait(False).pop()),
    }


async def subscriptions(client: Queen) -> Any:
    """Groups that begin at the start, now, or at a time."""

    async def pop(group: str, **how: str) -> list[Any]:
        builder = client.queue("topic").group(group).batch(9).wait(False)
        for name, value in how.items():
            builder = getattr(builder, f"subscription_{name}")(value)
        return data(await builder.pop())

    await client.queue("topic").push({"data": "old"})
    begun = {
        "all": await pop("all"),
        "new": await pop("new", mode="new"),
        "new-only": await pop("only", mode="new-only"),
        "now": await pop("now", **{"from": "now"}),
        "1970": await pop("1970", **{"from": "1970-01-01T00:00:00.000Z"}),
    }
    await client.queue("topic").partition("other").push({"data": "new"})
    later = {name: await pop(name) for name in ("new", "only", "now")}
    return {"begun": begun, "later": later}


async def dead_letters(client: Queen) -> Any:
    """A handler that always fails: the message is retried, then listed with its last error."""
    await client.queue("dying").config({"retry_limit": 2}).create()
    await client.queue("dying").push({"data": {"order": 7}, "transactionId": "t7"})
    tries = 0

    async def handle(_: Any) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("invalid order")

    await reading(client.queue("dying").group("g").batch(1)).consume(handle)
    answer = await client.queue("dying").dlq("g").limit(5).get()
    (letter,) = answer["messages"]
    fields = ("transactionId", "consumerGroup", "retryCount", "queueName", "data")
    return {"tries": tries, "total": answer["total"], **{name: letter[name] for name in fields}}


async def namespaces(client: Queen) -> Any:
    """Queues found by namespace and task, configured or only pushed to."""
    await client.queue("ledger").namespace("bank").task("book").create()
    await client.queue("ledger").push({"data": "configured"})
    await client.queue("bank.mail").push({"data": "dotted"})
    await client.queue("other.book").push({"data": "task"})
    seen: list[Any] = []

    async def handle(messages: Any) -> None:
        seen.extend(data(messages))

    await reading(client.queue().namespace("bank").group("g").batch(1)).consume(handle)
    popped = await client.queue().task("book").group("h").batch(1).wait(False).pop()
    popped += await client.queue().task("book").group("h").batch(1).wait(False).pop()
    return {"namespace": sorted(seen), "task": sorted(data(popped))}


async def traces(client: Queen) -> Any:
    """A handler that leaves a trace, found again by message and by name."""
    await client.queue("traced").push({"data": 1, "transactionId": "t1"})
    found: list[Any] = []

    async def handle(message: Any) -> None:
        answer = await message["trace"]({"traceName": "run-1", "data": {"step": "begun"}})
        found.append([answer["success"], message["transactionId"], message["partitionId"]])

    await reading(client.queue("traced").group("g").batch(1)).consume(handle)
    ((success, transaction, partition),) = found
    by_message = await client.admin.get_traces_for_message(partition, transaction)
    by_name = await client.admin.get_traces_by_name("run-1")
    return {
        "success": success,
        "by message": [one["data"] for one in by_message["traces"]],
        "by name": [one["transaction_id"] for one in by_name["traces"]],
    }


async def attempts(client: Queen) -> Any:
    """How often a message is handed out when the limit is two."""
    await client.queue("counted").config({"retry_limit": 2}).create()
    await client.queue("counted").push({"data": 1})
    tries = 0
    while messages := await client.queue("counted").batch(1).wait(False).pop():
        tries += 1
        await client.ack(messages[0], False)
    return tries


async def streams(client: Queen) -> Any:
    """Sums by user in windows of a second, and a gate that lets three messages through a user."""
    for n in range(20):
        await client.queue("events").partition(f"p{n % 3}").push({"data": {"n": n, "user": n % 2}})

    def value(message: Any) -> Any:
        return message.get("data", message)

    async def follow(stream: Any, name: str, enough: Callable[[list[Any]], bool]) -> Any:
        """What a stream writes to the queue of its name, until it is enough, and its errors."""
        running = await stream.run(query_id=name, url=client_url, batch_size=50)
        out: list[Any] = []
        for _ in range(100):
            await asyncio.sleep(0.1)
            more = await client.queue(name).batch(50).partitions(50).wait(False).pop()
            if more:
                await client.ack(more, True)
                out += more
            if enough(out) and running.metrics()["cyclesTotal"] >= 3:
                break
        await running.stop()
        return out, running.metrics()["errorsTotal"]

    def total(sums: list[Any]) -> int:
        return sum(message["data"]["sum"] for message in sums)

    def admit(_: Any, context: Any) -> bool:
        context.state["n"] = context.state.get("n", 0) + 1
        return bool(context.state["n"] <= 3)

    summed = (
        Stream.from_(client.queue("events"))
        .key_by(lambda m: value(m)["user"])
        .window_tumbling(seconds=1, idle_flush_ms=300)
        .aggregate({"sum": lambda m: value(m)["n"]})
        .to(client.queue("sums"))
    )
    sums, first = await follow(summed, "sums", lambda out: total(out) >= sum(range(20)))
    gated = Stream.from_(client.queue("events")).gate(admit).to(client.queue("gated"))
    passed, second = await follow(gated, "gated", lambda out: len(out) >= 9)
    return {"sum": total(sums), "passed": len(passed), "errors": [first, second]}


async def administration(client: Queen) -> Any:
    """Every call of the administrative interface that both clients have."""
    await client.queue("seen").push([{"data": 1}, {"data": 2}])
    (message,) = await client.queue("seen").group("g").batch(1).wait(False).pop()
    admin, where = client.admin, (message["partitionId"], message["transactionId"])
    detail = await admin.get_message(*where)
    groups = (await admin.list_consumer_groups())["groups"]
    for call in (
        admin.get_overview(), admin.get_namespaces(), admin.get_tasks(), admin.get_status(),
        admin.get_queue_stats(), admin.get_analytics(), admin.get_lagging_consumers(0),
        admin.refresh_consumer_stats(), admin.get_queue_detail("seen"), admin.get_queue("seen"),
    ):  # fmt: skip
        assert await call is not None
    sought = await admin.seek_consumer_group("g", "seen", {"toEnd": True})
    return {
        "queues": [queue["name"] for queue in (await admin.list_queues())["queues"]],
        "listed": len((await admin.list_messages(queue="seen"))["messages"]),
        "detail": [detail["payload"], detail["status"]],
        "group": [groups[0]["name"], groups[0]["totalLag"], groups[0]["state"]],
        "parts": len((await admin.get_consumer_group("g"))["seen"]["partitions"]),
        "sought": sought["partitionsUpdated"],
        "moved": (await client.update_consumer_group_timestamp("g", "2030-01-01T00:00:00Z"))[
            "rowsUpdated"
        ],
        "deleted": (await client.delete_consumer_group("g"))["success"],
        "health": (await admin.health())["status"],
    }


client_url = sys.argv[1] if len(sys.argv) > 1 else ""
SCENARIOS: dict[str, Scenario] = {
    run.__name__: run
    for run in (
        push, pop_and_ack, consume_single, consume_batch, consume_each, consume_unsized,
        consume_concurrently, callbacks, renewal, transactions, subscriptions, dead_letters,
        namespaces, traces, attempts, streams, administration,
    )
}  # fmt: skip


async def run_one(url: str, name: str) -> Any:
    try:
        async with Queen(url) as client:
            return await SCENARIOS[name](client)
    except Exception:
        return traceback.format_exc()


async def main(url: str, names: list[str]) -> None:
    answers = await asyncio.gather(*(run_one(url, name) for name in names))
    print(json.dumps(dict(zip(names, answers, strict=True))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
