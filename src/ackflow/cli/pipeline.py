"""`ackflow pipeline`: run a pipeline on Spark, see how far it is, give up a client."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from .. import validate
from ..errors import InvalidArgument, NotFound
from ..pipeline import masters
from ..pipeline.declaration import Pipeline
from ..pipeline.folders import made, possible
from ..pipeline.keeping import pipelines
from ..pipeline.loader import clients
from ..pipeline.stages import HERE, STAGES, Settings, upstream
from ..session.session import Session
from .command import NOTHING
from .output import Columns, Output
from .params import duration
from .places import NoDatabase
from .streams import persistent

app = typer.Typer(no_args_is_help=True, help="Run a pipeline of tables and questions on Spark.")

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with a folder of CSV files for each client; not for a stage that reads none."
    ),
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
    str | None, typer.Option("--token", envvar="ACKFLOW_TOKEN", help="What the server asks for.")
]
AlarmAfter = Annotated[
    float, duration("Time after which a held end of file is an alarm.", least=1.0)
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    transactions: Annotated[int, typer.Option(min=0, help="Transactions of each client.")] = 10_000,
    clients: Annotated[int, typer.Option(min=1, help="How many clients.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same data.")] = 1,
) -> None:
    """Write data of coffee shops, with the rows that are easily got wrong."""
    from ..pipeline.examples.generate import generate as write

    write(out, transactions, clients, seed)
    print(f"{clients} clients with {transactions:,} transactions each are in {out}")


@app.command()
def run(
    out: Out,
    data: Data = None,
    db: Db = None,
    declared: Declared = HERE,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[2]",
    workers: Annotated[int, typer.Option(min=1, help="Upstream workers.")] = 3,
    shards: Annotated[int, typer.Option(min=1, max=99, help="Aggregator partitions.")] = 4,
    eof_alarm_after: AlarmAfter = 60.0,
    stage: Annotated[
        str | None,
        typer.Option(help="Run only this until stopped: worker, router, aggregator or finisher."),
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="Which worker, with --stage worker.")] = 0,
    standby: Annotated[
        bool, typer.Option(help="Keep a second router warm that takes over when the first dies.")
    ] = True,
    token: Secret = None,
) -> None:
    """Answer the questions for every client; started again, it goes on where it was."""
    if stage is not None and stage not in ("worker", *STAGES):
        raise InvalidArgument(f"a stage is worker, {', '.join(STAGES)}, not {stage!r}")
    if data is None and stage in (None, "worker"):
        raise InvalidArgument("--data is missing: the folder with a folder for each client")
    settings = Settings(
        data=str(data or ""), out=str(out), db=db, declaration=str(declared), master=master,
        workers=workers, shards=shards, token=token, standby=standby,
    )  # fmt: skip
    if stage is not None:
        run_stage(settings, stage, worker)
        return
    from ..pipeline.chart import write as draw
    from ..pipeline.run import Run

    with persistent(), closing(Run(settings)) as found:
        worked = found.run(alarm_after=eof_alarm_after)
    if worked:
        print(f"the answers are in {out}, the timeline is {draw(out)}")


def check_stage(settings: Settings, stage: str, worker: int) -> None:
    """Refuse what cannot work before anything is made."""
    settings.pipeline()
    possible(Path(settings.out))
    if stage == "worker":
        clients(Path(settings.data))
        if worker >= settings.workers:
            raise InvalidArgument(f"--worker is from 0 to {settings.workers - 1}, not {worker}")
    if stage == "router":
        masters.check(settings.master)


def run_stage(settings: Settings, stage: str, worker: int) -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    check_stage(settings, stage, worker)
    made(Path(settings.out))
    if stage == "worker":
        upstream(settings, worker)
    else:
        STAGES[stage](settings)


def begun(settings: Settings, consumer: str) -> Session:
    """A session on the database of a run, which must be there: looking makes none."""
    if not validate.is_url(settings.url) and not Path(settings.url).exists():
        raise NoDatabase(f"there is no database {settings.url}; `ackflow pipeline run` makes one")
    return settings.session(consumer)


def elsewhere(q: Session, pipeline: Pipeline) -> str:
    """What to say to who may have meant another pipeline than the one that runs by default."""
    others = [name for name in pipelines(q) if name != pipeline.name]
    return f"; {', '.join(others)} is here, too: give its file by --pipeline" if others else ""


@app.command()
def status(
    out: Out, db: Db = None, declared: Declared = HERE, token: Secret = None,
    eof_alarm_after: AlarmAfter = 60.0,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option(help="Metrics for Prometheus.")] = False,
) -> None:  # fmt: skip
    """Show what is handled of each table, and which ends of file are not acknowledged."""
    from ..pipeline.status import exposition, look

    settings = Settings(data="", out=str(out), db=db, declaration=str(declared), token=token)
    pipeline = settings.pipeline()
    with begun(settings, "status") as q:
        rows = look(q, pipeline, eof_alarm_after)
        others = elsewhere(q, pipeline)
    if prometheus:
        print(exposition(rows, pipeline), end="")
        return
    if not rows and not as_json:
        print(f"nothing was sent yet to the pipeline {pipeline.name!r}{others}")
        raise typer.Exit(NOTHING)
    Output(as_json).table(
        Columns(
            ("client", "table", ">batches", ">ends held", ">oldest", "state"),
            ("oldest", "batches", "ends held", "state"),
        ),
        [(row.client, row.table, str(row.handled), str(row.held),
          f"{row.oldest_seconds:.0f} s" if row.held else "", row.state) for row in rows],
        rows,
    )  # fmt: skip


@app.command()
def cancel(
    client: Annotated[str, typer.Argument(help="The client that vanished.")],
    out: Out, db: Db = None, declared: Declared = HERE, token: Secret = None,
) -> None:  # fmt: skip
    """Give up a client: what it sent is let go, what is known of it is deleted."""
    from ..pipeline.cancel import cancel as give_up

    settings = Settings(data="", out=str(out), db=db, declaration=str(declared), token=token)
    pipeline = settings.pipeline()
    with begun(settings, "cancel") as q:
        try:
            new = give_up(q, pipeline, client)
        except NotFound as error:
            error.message += elsewhere(q, pipeline)
            raise
    print(f"{client} is cancelled; the stages let go of what it sent" if new else
          f"{client} was cancelled already")  # fmt: skip
