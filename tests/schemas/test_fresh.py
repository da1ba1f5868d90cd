"""A new database gets one squashed schema, which equals what the migrations lead to."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import apsw
import psycopg
import pytest

from ackflow.store import migrate

from ..postgres.server import Server


def sqlite_database(fresh: migrate.Migration | None) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    migrate.migrate(db, migrate.shipped("sqlite"), fresh)
    return db


def definitions(sql: str) -> tuple[str, list[str], str]:
    """The head, the sorted definitions in parentheses and the tail of a statement, normalised.

    Columns that were added by a migration stand behind the constraints of a table; their order is
    compared by `table_xinfo`.
    """
    plain = re.sub(r"\s+", " ", re.sub(r"--.*", "", sql).replace('"', "")).lower()
    head, _, rest = plain.partition("(")
    depth, found = 0, [""]
    for at, letter in enumerate(rest):
        if letter == ")" and not depth:
            return head.strip(), sorted(one.strip() for one in found), rest[at + 1 :].strip()
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return plain.strip(), [], ""


def sqlite_schema(db: apsw.Connection) -> dict[str, Any]:
    """Everything a schema consists of, but for the order in which it was created."""
    found: dict[str, Any] = {}
    rows = db.execute("select type, name, tbl_name, sql from sqlite_master").fetchall()
    for type, name, table, sql in rows:
        found[f"{type} {name}"] = table, definitions(sql) if sql else None
        if type in ("table", "view"):
            found[f"columns {name}"] = db.execute(f"pragma table_xinfo({name})").fetchall()
            found[f"rows {name}"] = db.execute(f"select * from {name}").fetchall()
            found[f"kind {name}"] = db.execute(f"pragma table_list({name})").fetchall()
        if type == "index":
            found[f"columns {name}"] = db.execute(f"pragma index_xinfo({name})").fetchall()
    for pragma in ("user_version", "application_id"):
        found[pragma] = db.pragma(pragma)
    return found


def test_a_new_file_has_the_schema_that_the_migrations_lead_to() -> None:
    fresh = sqlite_schema(sqlite_database(migrate.schema("sqlite")))
    migrated = sqlite_schema(sqlite_database(None))
    assert fresh.keys() == migrated.keys()
    for name, found in fresh.items():
        assert found == migrated[name], name
    kinds = {name.partition(" ")[0] for name in fresh}
    assert {"table", "index", "view", "columns", "rows"} <= kinds


@pytest.mark.parametrize("changed", ["add column extra integer", "rename column paused to halted"])
def test_the_comparison_notices_a_difference_of_one_column(changed: str) -> None:
    db = sqlite_database(migrate.schema("sqlite"))
    before = sqlite_schema(db)
    db.execute(f"alter table queues {changed}")
    assert sqlite_schema(db) != before


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_newer_than_the_squashed_schema_are_applied_to_a_new_database(
    dialect: str,
) -> None:
    number, sql = migrate.schema(dialect)
    newer = (number + 1, "newer")
    shipped = [(n, str(n)) for n in range(1, number + 1)]
    assert number <= migrate.shipped(dialect)[-1][0]
    assert migrate.missing(0, [*shipped, newer], (number, sql)) == [sql, "newer"]
    assert migrate.missing(number - 1, [*shipped, newer], (number, sql)) == [str(number), "newer"]


QUERIES = {
    "columns": """select table_name, column_name, data_type, column_default, is_nullable,
        is_identity, identity_generation, collation_name,
        row_number() over (partition by table_name order by ordinal_position)
        from information_schema.columns where table_schema = 'tested'""",
    "tables": """select relname, relkind::text, reloptions from pg_class
        where relnamespace = 'tested'::regnamespace""",
    "storage": """select relname, attname, attstorage::text from pg_attribute
        join pg_class on pg_class.oid = attrelid
        where relnamespace = 'tested'::regnamespace and attnum > 0 and not attisdropped""",
    "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'tested'",
    "constraints": """select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        from pg_constraint where connamespace = 'tested'::regnamespace and contype <> 'n'""",
    "views": "select viewname, definition from pg_views where schemaname = 'tested'",
    "functions": """select proname, pg_get_functiondef(oid) from pg_proc
        where pronamespace = 'tested'::regnamespace""",
    "triggers": """select event_object_table, trigger_name, action_statement
        from information_schema.triggers where trigger_schema = 'tested'""",
}


def postgres_schema(server: Server, steps: Sequence[str]) -> dict[str, list[str]]:
    """What a schema consists of, and its first rows; it is dropped again."""
    with psycopg.connect(server.url) as db:
        db.execute("create schema tested")
        db.execute("set local search_path = tested")
        for sql in steps:
            db.execute(sql.encode())
        found = {
            name: sorted(map(str, db.execute(query.encode()).fetchall()))
            for name, query in QUERIES.items()
        }
        tables = db.execute("select tablename from pg_tables where schemaname = 'tested'")
        for (name,) in tables.fetchall():
            rows = db.execute(f"select * from {name}".encode()).fetchall()
            # When a row was written is not part of the schema.
            found[f"rows {name}"] = sorted(
                str([value for value in row if not isinstance(value, datetime)]) for row in rows
            )
        db.rollback()
    return found


def test_a_new_schema_on_postgres_is_what_the_migrations_lead_to(postgres_server: Server) -> None:
    shipped = migrate.shipped("postgres")
    fresh = migrate.missing(0, shipped, migrate.schema("postgres"))
    migrated = postgres_schema(postgres_server, [sql for _, sql in shipped])
    assert postgres_schema(postgres_server, fresh) == migrated
    assert all(migrated[name] for name in ("columns", "indexes", "views", "rows writes"))
