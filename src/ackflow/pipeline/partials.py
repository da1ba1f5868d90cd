"""Partial results: what each batch folded, as Parquet files in the work folder.

    WORK/<batch>/client=<client>/route=<route>/part-….parquet

Only the names of the folders are in the queue, in the commit of their batch; a folder that no commit
names is deleted when the application starts. When a client has more than `MAX_FOLDERS`, they are
folded into one (compaction), so that they are proportional to the distinct keys of its routes, not
to the number of batches.
"""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .. import Session
from ..errors import TransactionFailed
from .declaration import Pipeline
from .sql import BAD, SUM, Layout, Stored, folded, literal, quoted, view_sql
from .state import read_state

MAX_FOLDERS = 16

log = logging.getLogger("ackflow.pipeline")


class Folder(Struct, frozen=True):
    """A folder with partial results of one client, and the paths of its routes."""

    name: str
    routes: dict[str, str]


class WorkFolder:
    """A folder that the driver and all executors share, on any file system that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        configuration = context._jsc.hadoopConfiguration()
        self._root: Any = self._jvm.org.apache.hadoop.fs.Path(root)
        self._fs = self._root.getFileSystem(configuration)
        self.root = self._fs.makeQualified(self._root).toString().rstrip("/")

    def new_name(self) -> str:
        return token_hex(8)

    def path(self, *names: str) -> str:
        return "/".join((self.root, *names))

    def entries(self, path: str) -> list[str]:
        """Return the names in a folder; of one that does not exist, none."""
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        if not self._fs.exists(where):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(where))

    def delete(self, *names: str) -> None:
        self._fs.delete(self._jvm.org.apache.hadoop.fs.Path(self.path(*names)), True)

    def sync(self, name: str) -> None:
        """Write the files of a folder to the disk, if this machine has them."""
        if not self.root.startswith("file:"):
            return
        root = Path("/" + self.root.removeprefix("file:").lstrip("/"))
        for folder, _, files in os.walk(root / name):
            for file in (*files, "."):
                _fsync(Path(folder, file))
        _fsync(root)

    def contents(self, name: str) -> Iterator[bytes]:
        """Yield the text files of a folder in their order, a piece at a time."""
        for file in self.entries(self.path(name)):
            if not file.startswith("part-"):
                continue
            stream = self._fs.open(self._jvm.org.apache.hadoop.fs.Path(self.path(name, file)))
            try:
                while piece := stream.readNBytes(1 << 20):
                    yield bytes(piece)
            finally:
                stream.close()


def _fsync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Partials:
    """The partial results of all clients of a pipeline."""

    def __init__(
        self, q: Session, pipeline: Pipeline, spark: SparkSession, layout: Layout, work: WorkFolder
    ) -> None:
        self._q, self._pipeline, self._spark = q, pipeline, spark
        self._layout, self._work = layout, work
        self.lock = threading.Lock()  # an answer reads files that compaction would delete

    def write(self, rows: DataFrame) -> dict[str, Folder]:
        """Write folded rows to a new folder; return what it has of each client."""
        name = self._work.new_name()
        writer = rows.write.partitionBy("client", "route")
        writer.parquet(self._work.path(name))
        found = {}
        for client in self._work.entries(self._work.path(name)):
            if client.startswith("client="):
                paths = {
                    unquote(route.removeprefix("route=")): self._work.path(name, client, route)
                    for route in self._work.entries(self._work.path(name, client))
                }
                found[unquote(client.removeprefix("client="))] = Folder(
                    name,
                    {route: path.removeprefix(self._work.root) for route, path in paths.items()},
                )
        self._work.sync(name)
        return found

    def key(self, client: str) -> str:
        """Return the state key of the folders of a client."""
        return self._pipeline.state_key("partials", client)

    def folders(self, client: str) -> list[Folder]:
        """Return the folders of a client."""
        return self.versioned(client)[1]

    def versioned(self, client: str) -> tuple[int, list[Folder]]:
        """Return the folders of a client, and the version of that list."""
        value = self._q.value(self.key(client))
        if value is None:
            return 0, []
        return value.version, msgspec.convert(value.data, list[Folder])

    def named(self, client: str, folder: Folder) -> dict[str, Any]:
        """Return the keyed values of a client with one more folder.

        Bad rows are no partial results: they wait under a name of their own to be sent.
        """
        values: dict[str, Any] = {}
        routes = {route: path for route, path in folder.routes.items() if route != BAD}
        if routes:
            kept = [*self.folders(client), Folder(folder.name, routes)]
            values[self.key(client)] = msgspec.to_builtins(kept)
        if path := folder.routes.get(BAD):
            key = self._pipeline.state_key("bad", client, folder.name)
            values[key] = msgspec.to_builtins(Folder(folder.name, {BAD: path}))
        return values

    def waiting(self) -> list[tuple[str, Folder]]:
        """Return the clients and folders whose bad rows are not sent yet."""
        found = read_state(self._q, self._pipeline, "bad")
        return [(key.rpartition("/")[0], msgspec.convert(value, Folder))
                for key, value in found.items()]  # fmt: skip

    def sent(self, client: str, folder: Folder) -> None:
        """Forget a folder whose bad rows are sent."""
        t = self._q.transaction()
        t.delete(self._pipeline.state_key("bad", client, folder.name))
        t.commit()
        self.delete([folder])

    def compact(self, client: str) -> bool:
        """Fold the folders of a client into one if there are more than `MAX_FOLDERS`."""
        with self.lock:
            version, folders = self.versioned(client)
            if len(folders) <= MAX_FOLDERS:
                return False
            rows: DataFrame | None = None
            for stored in self._layout.stored:
                found = self._read(self._spark, folders, stored.name)
                if found is not None:
                    found = found.selectExpr(
                        f"{literal(client)} as client", f"{literal(stored.name)} as route", "*"
                    )
                    rows = found if rows is None else rows.union(found)
            assert rows is not None
            new = self.write(folded(rows, self._layout, again=True))[client]
            t = self._q.transaction()
            t.put(self.key(client), msgspec.to_builtins([new]), expect=version)
            try:
                t.commit()
            except TransactionFailed:
                # The client was cancelled, or another application is at work.
                self._work.delete(new.name)
                return False
            for folder in folders:
                self._delete_client(folder)
            log.info("folded %d partial results of %s into one", len(folders), client)
            return True

    def delete(self, folders: list[Folder]) -> None:
        """Delete partial results that no state names any more."""
        for folder in folders:
            self._delete_client(folder)

    def _delete_client(self, folder: Folder) -> None:
        """Delete the results of a folder, and the folder when nothing else is in it."""
        for path in folder.routes.values():
            self._work.delete(*path.strip("/").split("/"))
        for client in {path.split("/")[2] for path in folder.routes.values()}:
            if not self._has(folder.name, client, within="route="):
                self._work.delete(folder.name, client)
        if not self._has(folder.name, within="client="):
            self._work.delete(folder.name)

    def _has(self, *names: str, within: str) -> bool:
        return any(e.startswith(within) for e in self._work.entries(self._work.path(*names)))

    def delete_unnamed(self) -> None:
        """Delete the folders of batches that were never committed."""
        named = {
            folder["name"]
            for folders in read_state(self._q, self._pipeline, "partials").values()
            for folder in folders
        } | {folder.name for _, folder in self.waiting()}
        for name in self._work.entries(self._work.root):
            if name not in named:
                self._work.delete(name)

    def bad_rows(self, folder: Folder) -> Iterator[tuple[str, str, str, int]]:
        """Yield the bad rows of a folder in their order: table, reason, row and how often."""
        rows = self._read(self._spark, [folder], BAD)
        if rows is not None:
            columns = rows.selectExpr("k2", "k0", "k1", "n").coalesce(1)
            for row in columns.sortWithinPartitions("k2", "k0", "k1").toLocalIterator():
                yield tuple(row)

    def _read(self, spark: SparkSession, folders: list[Folder], route: str) -> DataFrame | None:
        paths = [f"{self._work.root}{f.routes[route]}" for f in folders if route in f.routes]
        return spark.read.schema(self._layout.schema()).parquet(*paths) if paths else None

    def create_views(self, spark: SparkSession, folders: list[Folder]) -> None:
        """Create a view for each route over the given folders."""
        for stored in self._layout.stored:
            rows = self._read(spark, folders, stored.name)
            create_view(spark, stored, no_rows(spark, self._layout) if rows is None else rows)
        create_route_views(spark, self._pipeline)


def no_rows(spark: SparkSession, layout: Layout) -> DataFrame:
    """Return no stored rows.

    `createDataFrame` would make this session the active one, in which Spark then looks for the
    formats of all others.
    """
    row = F.from_json(F.lit("{}"), layout.schema()).alias("row")
    return spark.range(0).select(row).select("row.*")


def create_view(spark: SparkSession, stored: Stored, rows: DataFrame) -> None:
    """Create the view of a stored route: keys with their types, and sums folded exactly."""
    keys = [f"k{i}" for i in range(len(stored.keys))]
    names = [f"cast(k{i} as {kind}) as {quoted(n)}" for i, (n, _, kind) in enumerate(stored.keys)]
    if stored.sums:
        names += [f"v{i} as {quoted(name)}" for i, (name, _) in enumerate(stored.sums)]
        sums = [F.expr(_total(stored, i)).alias(f"v{i}") for i in range(len(stored.sums))]
        # Without a key, no rows would be one row whose sums are null.
        found = rows.groupBy(*([F.col(key) for key in keys] or [F.lit(True)])).agg(*sums)
    else:
        # Equal rows are stored once, with their number.
        more = rows.where("n > 1").selectExpr(*keys, "explode(sequence(2L, n)) as n")
        found = rows.select(*keys, "n").union(more)
    found.selectExpr(*names).createOrReplaceTempView(quoted(f"_stored_{stored.name}"))


def _total(stored: Stored, i: int) -> str:
    name, sql = stored.sums[i]
    lost = literal(f"the sum {name} of route {stored.name} does not fit {SUM}")
    if i not in stored.added:
        return f"coalesce(cast(try_multiply(sum(n), {sql}) as {SUM}), raise_error({lost}))"
    return f"if(bool_or(v{i} is null) or try_sum(v{i}) is null, raise_error({lost}), try_sum(v{i}))"


def create_route_views(spark: SparkSession, pipeline: Pipeline) -> None:
    """Create the views that queries read, over those of the stored routes."""
    for route in pipeline.routes:
        query = view_sql(route)
        found = spark.table(quoted(f"_stored_{route.name}")) if query is None else spark.sql(query)
        found.createOrReplaceTempView(quoted(route.name))
