"""`ackflow pipeline`: run a pipeline on Spark, show its progress, cancel a client."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from ... import validate
from ...errors import InvalidArgument, NotFound
from ...pipeline import preflight, stages
from ...pipeline.declaration import Pipeline, example, load_module
from ...pipeline.loader import clients
from ...pipeline.stages import Settings
from ...pipeline.state import pipeline_names
from ...session.session import Session
from ..errors import NOTHING, NoDatabase
from ..output import Columns, Output
from ..params import duration
from ..streams import persistent

DEFAULT_DECLARATION = example("coffee_shop")

app = typer.Typer(no_args_is_help=True, help="Run a pipeline of tables and queries on Spark.")

Data = Annotated[
    Path | None,
    typer.Option(help="Folder with one sub-folder of files per client; only workers read it."),
]
Out = Annotated[Path, typer.Option(help="Folder for the answers, logs and the timeline.")]
Db = Annotated[
    str | None,
    typer.Option(
        help="Database file, or URL of PostgreSQL or a server "
        "(default: pipeline.db in the out folder)."
    ),
]
Declared = Annotated[
    Path,
    typer.Option(
        "--pipeline",
        help="Python file that declares the pipeline.",
        show_default="the coffee shop",
    ),
]
Secret = Annotated[
    str | None, typer.Option("--token", envvar="ACKFLOW_TOKEN", help="Access token of the server.")
]
AlarmAfter = Annotated[
    float, duration("Time after which a held end-of-file message raises an alarm.", least=1.0)
]
Work = Annotated[
    str | None,
    typer.Option(
        help="Folder or URL for partial results that the driver and all executors share "
        "(default: work in the out folder)."
    ),
]
Results = Annotated[Literal["json", "csv", "parquet"], typer.Option(help="Format of the answers.")]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="NAME=VALUE", help="A setting of Spark, as in spark-submit; repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    transactions: Annotated[int, typer.Option(min=0, help="Transactions per client.")] = 10_000,
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed; equal seeds give equal data.")] = 1,
) -> None:
    """Generate data of coffee shops, including edge cases."""
    load_module(example("coffee_shop_data"))["generate"](out, transactions, clients, seed)
    print(f"{clients} clients with {transactions:,} transactions each are in {out}")


@app.command()
def run(
    out: Out,
    data: Data = None,
    db: Db = None,
    declared: Declared = DEFAULT_DECLARATION,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[2]",
    workers: Annotated[int, typer.Option(min=1, help="Number of upstream workers.")] = 3,
    parts: Annotated[
        int, typer.Option(min=1, max=99, help="Number of partitions for folded rows.")
    ] = 4,
    work: Work = None,
    results: Results = "json",
    eof_alarm_after: AlarmAfter = 60.0,
    stage: Annotated[
        str | None,
        typer.Option(help="Run one stage until stopped: worker or spark."),
    ] = None,
    worker: Annotated[
        int, typer.Option(min=0, help="Number of the worker, with --stage worker.")
    ] = 0,
    standby: Annotated[
        bool | None,
        typer.Option(
            help="Keep a warm standby that takes over when Spark dies.",
            show_default="on a local master",
        ),
    ] = None,
    ui: Annotated[bool, typer.Option(help="Serve Spark's own pages.")] = True,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="Client whose queries are answered although more blocks arrived than its "
            "end-of-file messages announce."
        ),
    ] = None,
    conf: Conf = None,
    token: Secret = None,
) -> None:
    """Answer the queries for every client; a restarted run continues where it stopped."""
    if stage is not None and stage not in ("worker", "spark"):
        raise InvalidArgument(f"--stage must be one of worker, spark, got {stage!r}")
    if data is None and stage in (None, "worker"):
        raise InvalidArgument("--data is required: a folder with one sub-folder per client")
    settings = Settings(
        data=str(data or ""), out=str(out), db=db, declaration=str(declared), master=master,
        workers=workers, parts=parts, work=work, results=results, token=token, standby=standby,
        ui=ui, conf=preflight.parse_conf(conf or ()),
    )  # fmt: skip
    if stage is not None:
        run_stage(settings, stage, worker)
        return
    from ...pipeline.progress import write as draw
    from ...pipeline.run import Run

    with persistent(), closing(Run(settings)) as found:
        for client in accept or ():
            found.accept(client)
        worked = found.run(alarm_after=eof_alarm_after)
    if worked:
        print(f"the answers are in {out}, the timeline is {draw(out)}")


def check_stage(settings: Settings, stage: str, worker: int) -> None:
    """Validate the settings of a stage before anything is created."""
    settings.pipeline()
    preflight.check_folder(Path(settings.out))
    if stage == "worker":
        clients(Path(settings.data))
        if worker >= settings.workers:
            raise InvalidArgument(
                f"--worker must be an integer from 0 to {settings.workers - 1}, got {worker}"
            )
    if stage == "spark":
        preflight.check_master(settings.master)


def run_stage(settings: Settings, stage: str, worker: int) -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    check_stage(settings, stage, worker)
    preflight.make_folder(Path(settings.out))
    if stage == "worker":
        stages.worker(settings, worker)
    else:
        stages.spark(settings)


def existing_session(settings: Settings, consumer: str) -> Session:
    """Open the database of a run, which must exist: reading creates none."""
    if not validate.is_url(settings.url) and not Path(settings.url).exists():
        raise NoDatabase(f"database not found: {settings.url}; `ackflow pipeline run` creates it")
    return settings.session(consumer)


def other_pipelines_hint(q: Session, pipeline: Pipeline) -> str:
    """Return a hint for users who meant another pipeline than the default one."""
    others = [name for name in pipeline_names(q) if name != pipeline.name]
    return (
        f"; the database also has {', '.join(others)}: name its file with --pipeline"
        if others
        else ""
    )


@app.command()
def status(
    out: Out, db: Db = None, declared: Declared = DEFAULT_DECLARATION, token: Secret = None,
    eof_alarm_after: AlarmAfter = 60.0,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option(help="Print metrics for Prometheus.")] = False,
) -> None:  # fmt: skip
    """Show the progress of each table and its unacknowledged end-of-file messages."""
    from ...pipeline.state import prometheus_text, table_statuses

    settings = Settings(data="", out=str(out), db=db, declaration=str(declared), token=token)
    pipeline = settings.pipeline()
    with existing_session(settings, "status") as q:
        rows = table_statuses(q, pipeline, eof_alarm_after)
        others = other_pipelines_hint(q, pipeline)
    if prometheus:
        print(prometheus_text(rows, pipeline), end="")
        return
    if not rows and not as_json:
        print(f"pipeline {pipeline.name!r} has received nothing yet{others}")
        raise typer.Exit(NOTHING)
    Output(as_json).table(
        Columns(
            ("client", "table", ">blocks", ">rows", ">ends held", ">oldest", "state"),
            ("oldest", "rows", "blocks", "ends held", "state"),
        ),
        [(row.client, row.table, str(row.blocks), str(row.rows), str(row.held),
          f"{row.oldest_seconds:.0f} s" if row.held else "", row.state) for row in rows],
        rows,
    )  # fmt: skip


@app.command()
def cancel(
    client: Annotated[str, typer.Argument(help="Client to cancel.")],
    out: Out, db: Db = None, declared: Declared = DEFAULT_DECLARATION, token: Secret = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Cancel only its alarm: answer its queries with all blocks that arrived, even if its "
            "end-of-file messages announce fewer.",
        ),
    ] = False,
) -> None:  # fmt: skip
    """Cancel a client: drop its messages and delete its state."""
    from ...pipeline.state import accept as accept_client
    from ...pipeline.state import cancel as cancel_client

    settings = Settings(data="", out=str(out), db=db, declaration=str(declared), token=token)
    pipeline = settings.pipeline()
    with existing_session(settings, "cancel") as q:
        try:
            new = (accept_client if accept else cancel_client)(q, pipeline, client)
        except NotFound as error:
            error.message += other_pipelines_hint(q, pipeline)
            raise
    if accept:
        print(f"{client} is accepted; its queries are answered with all blocks that arrived" if new else
              f"{client} was already accepted")  # fmt: skip
    else:
        print(f"{client} is cancelled; its messages are dropped" if new else
              f"{client} was already cancelled")  # fmt: skip


@app.command()
def check(
    declaration: Annotated[Path, typer.Argument(help="Python file that declares the pipeline.")],
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[1]",
) -> None:
    """Check a declaration, and explain what each part becomes on Spark."""
    settings = Settings(data="", out="", declaration=str(declaration), master=master)
    pipeline = settings.pipeline()
    preflight.check_spark(master)
    from ...pipeline.application import spark_session
    from ...pipeline.check import explained

    spark = spark_session(settings, pipeline)
    try:
        print("\n".join(explained(spark, pipeline)))
    finally:
        spark.stop()


@app.command()
def answers(
    client: Annotated[
        str, typer.Option("--so-far", help="Client whose queries are answered.")
    ],
    out: Out, to: Annotated[Path, typer.Option(help="Folder for the interim answers.")],
    db: Db = None, declared: Declared = DEFAULT_DECLARATION, work: Work = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[2]",
    results: Results = "json", conf: Conf = None, token: Secret = None,
) -> None:  # fmt: skip
    """Answer the queries of an unfinished client with the rows folded so far."""
    settings = Settings(
        data="", out=str(out), db=db, declaration=str(declared), work=work, master=master,
        results=results, token=token, conf=preflight.parse_conf(conf or ()),
    )  # fmt: skip
    pipeline = settings.pipeline()
    with existing_session(settings, "answers") as q:
        from ...pipeline.state import check_open

        check_open(q, pipeline, client, "answered")
        preflight.check_spark(master)
        preflight.make_folder(to)
        from ...pipeline.application import answer_so_far, spark_session

        spark = spark_session(settings, pipeline)
        try:
            blocks, rows = answer_so_far(spark, settings, pipeline, q, client, to)
        finally:
            spark.stop()
    print(f"{client}: {blocks:,} blocks with {rows:,} rows so far; the answers are in {to}")
