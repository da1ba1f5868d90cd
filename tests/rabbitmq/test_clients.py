"""Stock aio-pika, kombu, Celery and FastStream, unchanged, against `ackflow serve --amqp-port`."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aio_pika
import kombu
import pytest
from faststream.rabbit import RabbitBroker

from ..docs.blocks import blocks, run_python
from ..server.conftest import Process, free_port
from .conftest import Amqp

ROOT = Path(__file__).parents[2]


def test_aio_pika_publishes_consumes_and_gets_returns(amqp: Amqp) -> None:
    async def run() -> None:
        connection = await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{amqp.port}/")
        async with connection:
            channel = await connection.channel(on_return_raises=True)
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange("x", aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue("q", durable=True)
            await queue.bind(exchange, "a.#")
            sent = [
                exchange.publish(
                    aio_pika.Message(
                        b"%d" % n, headers={"n": n, "f": 0.5}, delivery_mode=2, expiration=60
                    ),
                    "a.b",
                )
                for n in range(50)
            ]
            await asyncio.gather(*sent)
            seen = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        seen.append((int(message.body), message.headers["n"]))
                    if len(seen) == 50:
                        break
            assert seen == [(n, n) for n in range(50)]
            with pytest.raises(aio_pika.exceptions.PublishError):
                await exchange.publish(aio_pika.Message(b""), "nowhere")
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_queue("missing", passive=True)

    asyncio.run(run())


def test_aio_pika_calls_a_procedure(amqp: Amqp) -> None:
    async def double(*, n: int) -> int:
        return 2 * n

    async def run() -> None:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{amqp.port}/")
        async with connection:
            channel = await connection.channel()
            rpc = await aio_pika.patterns.RPC.create(channel)
            await rpc.register("double", double, auto_delete=True)
            assert await rpc.call("double", {"n": 21}) == 42

    asyncio.run(run())


def test_kombu_sends_and_drains(amqp: Amqp) -> None:
    url = f"pyamqp://guest:guest@127.0.0.1:{amqp.port}//"
    queue = kombu.Queue("k", kombu.Exchange("kx", "direct"), routing_key="rk", max_priority=5)
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        with connection.Producer(serializer="json") as producer:
            for n in (1, 5):
                producer.publish(
                    {"n": n}, exchange=queue.exchange, routing_key="rk", declare=[queue], priority=n
                )
        seen: list[dict[str, int]] = []

        def got(body: dict[str, int], message: kombu.Message) -> None:
            seen.append(body)
            message.ack()

        with connection.Consumer(queue, callbacks=[got]):
            while len(seen) < 2:
                connection.drain_events(timeout=10)
        assert seen == [{"n": 5}, {"n": 1}]
        simple = connection.SimpleQueue("simple")
        simple.put({"x": 1})
        message = simple.get(timeout=10)
        assert message.payload == {"x": 1}
        message.ack()
        simple.close()


def test_faststream_routes_between_handlers(amqp: Amqp) -> None:
    async def run() -> None:
        broker = RabbitBroker(f"amqp://guest:guest@127.0.0.1:{amqp.port}/")
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        @broker.subscriber("in")
        @broker.publisher("out")
        async def double(n: int) -> int:
            return 2 * n

        @broker.subscriber("out")
        async def got(n: int) -> None:
            found.set_result(n)

        async with broker:
            await broker.start()
            await broker.publish(21, "in")
            assert await asyncio.wait_for(found, 20) == 42

    asyncio.run(run())


def test_amqplib_of_npm(amqp: Amqp) -> None:
    installed = Path(sys.prefix) / "clients" / "amqplib" / "node_modules"
    if not (installed / "amqplib").exists():
        assert os.environ.get("CI") != "true", "CI needs amqplib: run `make setup`"
        pytest.skip("amqplib is not installed")
    done = subprocess.run(
        ["node", Path(__file__).with_name("amqplib.js"), f"amqp://127.0.0.1:{amqp.port}"],
        env={**os.environ, "NODE_PATH": str(installed)}, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert seen.pop("headers") == [{"n": n, "nested": {"deep": [True, 1.5]}} for n in (3, 3, 2, 1)]
    assert seen == {
        "returned": "NO_ROUTE", "order": ["3", "3 again", "2", "1"], "dead": ["1", "rejected"],
        "error": 404,
    }  # fmt: skip


class Celery:
    """Celery workers whose broker is `ackflow serve`, and programs that call their tasks."""

    def __init__(self, folder: Path, port: int) -> None:
        self._log = folder / "celery.log"
        self._workers: list[subprocess.Popen[bytes]] = []
        self._env = {**os.environ, "BROKER": f"pyamqp://guest:guest@127.0.0.1:{port}//"}
        (folder / "results").mkdir()
        self._results = f"file://{folder}/results"

    def start(self, pool: str, **env: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "celery", "-A", "tests.rabbitmq.celery_app", "worker"]
        command += ["--pool", pool, "--concurrency", "2", "--loglevel", "INFO", "--hostname"]
        command += [f"w{len(self._workers)}@local"]
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                command, env={**self._env, **env, "POOL": pool}, stdout=log, stderr=log, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        self._workers.append(worker)
        return worker

    def setenv(self, name: str, value: str) -> None:
        """Set a variable for the workers and programs that start from here on."""
        self._env[name] = value

    def store_results(self) -> None:
        """Keep results in files, for chords, which need more than a reply queue."""
        self._env["RESULTS"] = self._results

    def call(self, expression: str) -> "subprocess.Popen[bytes]":
        """Run an expression over the tasks in a program of its own; see `result`."""
        program = f"from tests.rabbitmq.celery_app import *; print({expression})"
        return subprocess.Popen(
            [sys.executable, "-c", program], env=self._env, cwd=ROOT, stdout=subprocess.PIPE
        )

    def result(self, expression: str) -> str:
        return self.wait(self.call(expression))

    def wait(self, called: "subprocess.Popen[bytes]") -> str:
        out, _ = called.communicate(timeout=120)
        assert called.returncode == 0, self._log.read_text()
        return out.decode().strip()

    def stop(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture
def celery(tmp_path: Path, start_process: Callable[..., Process]) -> Iterator[Celery]:
    port = free_port()
    start_process("--amqp-port", str(port))
    running = Celery(tmp_path, port)
    yield running
    running.stop()


@pytest.mark.outer
def test_a_celery_worker_runs_tasks_retries_and_countdowns(celery: Celery, tmp_path: Path) -> None:
    celery.start("solo")
    flaky = f"flaky.delay({str(tmp_path / 'flaky')!r}).get(timeout=60)"
    later = "add.apply_async((1, 1), countdown=1).get(timeout=60)"
    ping = "list(app.control.ping(timeout=5, limit=1)[0].values())"
    found = celery.result(f"add.delay(2, 3).get(timeout=60), {flaky}, {later}, {ping}")
    assert found == "5 3 2 [{'ok': 'pong'}]"


@pytest.mark.outer
def test_celery_delays_tasks_over_quorum_queues(celery: Celery) -> None:
    celery.setenv("QUEUES", "quorum")
    celery.start("solo")
    started = time.monotonic()
    later = "add.apply_async((1, 1), countdown=3).get(timeout=60)"
    assert celery.result(f"add.delay(2, 3).get(timeout=60), {later}") == "5 2"
    assert time.monotonic() - started >= 3
    declared = "app.connection().channel().queue_declare('celery_delayed_27', passive=True)"
    assert celery.result(f"{declared}.message_count") == "0"


@pytest.mark.outer
def test_celery_tasks_of_high_priority_come_first(celery: Celery, tmp_path: Path) -> None:
    celery.setenv("QUEUES", "priorities")
    path = str(tmp_path / "order")
    sent = [f"note.apply_async(({path!r}, {p!r}), priority={p})" for p in ("1", "9", "5")]
    declared = "app.amqp.queues['celery'](app.connection()).declare()"
    celery.result(f"{declared}, {', '.join(sent)}")
    celery.start("solo")
    assert celery.result("add.apply_async((1, 1), priority=0).get(timeout=60)") == "2"
    assert Path(path).read_text() == "951"


@pytest.mark.outer
def test_a_celery_chord_joins_the_results_of_prefork_workers(celery: Celery) -> None:
    celery.store_results()
    celery.start("prefork")
    assert celery.result("chord([add.s(n, n) for n in range(10)])(total.s()).get(60)") == "90"


@pytest.mark.outer
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_task_of_a_killed_worker_runs_again(celery: Celery, tmp_path: Path, pool: str) -> None:
    first = celery.start(pool)
    called = celery.call(f"killed_once.delay({str(tmp_path / 'killed')!r}).get(timeout=100)")
    first.wait(timeout=60)
    celery.start(pool)
    assert celery.wait(called) == "done"


@pytest.mark.outer
def test_the_celery_block_of_the_readme_runs(
    tmp_path: Path, start_process: Callable[..., Process]
) -> None:
    (code,) = [block.code for block in blocks(ROOT / "README.md") if "Celery(" in block.code]
    port = free_port()
    assert "localhost:5672" in code
    (tmp_path / "tasks.py").write_text(code.replace("localhost:5672", f"127.0.0.1:{port}"))
    start_process("--amqp-port", str(port))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        program = "import tasks; print(tasks.add.delay(2, 3).get(timeout=60))"
        called = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
        assert called.stdout == b"5\n", called.stderr.decode()
    finally:
        worker.kill()
        worker.wait()


def test_the_page_of_the_dialect_runs(amqp: Amqp) -> None:
    (block,) = blocks(ROOT / "docs" / "rabbitmq.md")
    assert '"localhost", 5672' in block.code
    code = block.code.replace('"localhost", 5672', f'"127.0.0.1", {amqp.port}')
    assert run_python(code, {}, block.place) == block.output
