"""Older schemas are migrated; newer schemas and foreign files are refused and left unchanged.

Files of older versions are in tests/schemas.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import ackflow
from ackflow.errors import NotADatabase, SchemaTooNew, StorageFailed
from ackflow.store.migrate import APPLICATION_ID, Migration, migrate, shipped, statements

FIRST: Migration = (1, "create table fruit (name text); insert into fruit values ('apple');")
SECOND: Migration = (2, "alter table fruit add column colour text default 'green';")
THIRD: Migration = (3, "update fruit set colour = 'red'; create table jars (n integer);")


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    yield connection
    connection.close()


def tables(db: apsw.Connection) -> set[str]:
    return {row[0] for row in db.execute("select name from sqlite_master where type = 'table'")}


def test_a_new_database_gets_every_migration_in_order(db: apsw.Connection) -> None:
    migrate(db, [FIRST, SECOND, THIRD])
    assert db.execute("select * from fruit").fetchall() == [("apple", "red")]
    assert db.pragma("user_version") == 3
    assert db.pragma("application_id") == APPLICATION_ID


def test_an_older_schema_gets_only_what_is_missing_and_keeps_its_rows(db: apsw.Connection) -> None:
    migrate(db, [FIRST])
    db.execute("insert into fruit values ('plum')")
    migrate(db, [FIRST, SECOND])
    assert db.execute("select * from fruit").fetchall() == [("apple", "green"), ("plum", "green")]
    assert db.pragma("user_version") == 2


def test_several_migrations_may_be_missing(db: apsw.Connection) -> None:
    migrate(db, [FIRST])
    migrate(db, [FIRST, SECOND, THIRD])
    assert tables(db) == {"fruit", "jars"}
    assert db.pragma("user_version") == 3


def test_migrating_twice_changes_nothing(db: apsw.Connection) -> None:
    migrate(db, [FIRST, SECOND])
    migrate(db, [FIRST, SECOND])
    assert db.execute("select count(*) from fruit").fetchall() == [(1,)]


def test_a_migration_that_fails_leaves_the_older_schema_whole(db: apsw.Connection) -> None:
    migrate(db, [FIRST])
    with pytest.raises(apsw.SQLError):
        migrate(db, [FIRST, SECOND, (3, "create table jars (n integer); nonsense;")])
    assert db.pragma("user_version") == 1
    assert tables(db) == {"fruit"}
    assert db.execute("select * from fruit").fetchall() == [("apple",)]
    assert not db.in_transaction


def test_a_newer_schema_is_refused_with_both_numbers(db: apsw.Connection) -> None:
    migrate(db, [FIRST, SECOND, THIRD])
    with pytest.raises(SchemaTooNew, match=r"schema 3.*up to 2.*upgrade Ackflow"):
        migrate(db, [FIRST, SECOND])
    assert db.pragma("user_version") == 3
    assert not db.in_transaction


def test_a_database_of_another_program_is_refused(db: apsw.Connection) -> None:
    db.execute("create table theirs (a)")
    with pytest.raises(NotADatabase, match="another program"):
        migrate(db, [FIRST])
    assert tables(db) == {"theirs"}


def test_an_empty_database_numbered_by_another_program_is_refused(db: apsw.Connection) -> None:
    db.pragma("user_version", 7)
    with pytest.raises(NotADatabase):
        migrate(db, [FIRST])
    assert tables(db) == set()


def test_the_migrations_shipped_are_numbered_from_one_without_gaps() -> None:
    assert [number for number, _ in shipped("sqlite")] == list(range(1, len(shipped("sqlite")) + 1))


def test_every_statement_shipped_fits_the_schema_shipped(db: apsw.Connection) -> None:
    migrate(db, shipped("sqlite"))
    for name, sql in statements("sqlite").items():
        arguments = [None] * sql_arguments(sql)
        assert db.execute(f"explain {sql}", arguments).fetchall(), name


def sql_arguments(sql: str) -> int:
    return max([0, *(n for n in range(1, 40) if f"?{n}" in sql)])


# the same through connect


def foreign(path: Path) -> bytes:
    other = apsw.Connection(str(path))
    other.execute("create table theirs (a); insert into theirs values (1)")
    other.close()
    return path.read_bytes()


def test_connecting_to_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    ackflow.connect(path, upkeep=False).close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 999)
    db.close()
    with pytest.raises(SchemaTooNew, match=r"schema 999.*upgrade Ackflow to open it"):
        ackflow.connect(path, upkeep=False)


def test_a_session_says_so_when_a_newer_version_migrates_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ackflow.connect(path, upkeep=False) as q:
        q.push("q", 1)
        db = apsw.Connection(str(path))
        db.pragma("user_version", 999)
        db.close()
        for call in (lambda: q.push("q", 2), lambda: q.pop("q"), lambda: q.browse("q")):
            for _ in range(2):
                with pytest.raises(SchemaTooNew, match=r"schema 999.*upgrade Ackflow"):
                    call()


def test_connecting_to_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    foreign(path)
    with pytest.raises(NotADatabase, match="another program"):
        ackflow.connect(path, upkeep=False)


def test_another_programs_database_is_not_changed_by_refusing_it(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    before = foreign(path)
    with pytest.raises(NotADatabase):
        ackflow.connect(path, upkeep=False)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.db"]


@pytest.mark.parametrize(
    "content", [b"dear diary, " * 200, b"\x00" * 4096, b"SQLite format 4\x00" * 100]
)
def test_a_file_of_another_format_is_refused_and_not_changed(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    with pytest.raises(NotADatabase, match=r"diary\.txt is not an Ackflow database"):
        ackflow.connect(path, upkeep=False)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["diary.txt"]


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    path.touch()
    with ackflow.connect(path, upkeep=False) as q:
        q.push("orders", 1)
        assert q.queue_stats("orders").messages == 1


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    with pytest.raises(StorageFailed, match=f"cannot open .*: {missing} does not exist"):
        ackflow.connect(missing / "a.db", upkeep=False)


def test_a_folder_that_cannot_be_written_gives_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        folder = Path("/proc")  # root may write anywhere else
    with pytest.raises(StorageFailed, match=r"cannot open .*a\.db: it cannot be created there"):
        ackflow.connect(folder / "a.db", upkeep=False)


def test_a_folder_given_as_the_file_gives_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot open"):
        ackflow.connect(tmp_path, upkeep=False)


def test_what_was_stored_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with ackflow.connect(path, upkeep=False) as q:
        (id,) = q.push("orders", {"n": 1})
    with ackflow.connect(path, upkeep=False) as q:
        assert q.message("orders", id).data == {"n": 1}


@pytest.mark.parametrize(
    "file", ["statements.sql", "sqlite/statements.sql", "postgres/statements.sql"]
)
def test_no_statement_has_two_texts(file: str) -> None:
    """The second would silently replace the first."""
    text = (Path(ackflow.__file__).parent / "store" / "sql" / file).read_text()
    names = [block.split()[0] for block in text.split("-- name: ")[1:]]
    assert sorted(names) == sorted(set(names))
