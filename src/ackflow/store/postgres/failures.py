"""What an error of PostgreSQL means for the caller of a verb."""

import contextlib
from collections.abc import Callable, Iterator

import psycopg
from psycopg import errors as pg

from ...errors import SessionClosed, StorageAway, StorageBusy, StorageFailed, StorageFull
from .connection import first_line


@contextlib.contextmanager
def translated(where: str, closed: Callable[[], bool]) -> Iterator[None]:
    """Translate errors of PostgreSQL, with a message that says what to do."""
    try:
        yield
    except pg.DiskFull:
        raise StorageFull(f"the disk of {where} is full: nothing is written there") from None
    except pg.LockNotAvailable:
        raise StorageBusy() from None
    except pg.InsufficientPrivilege as error:
        raise StorageFailed(f"cannot use {where}: {first_line(error)}") from None
    except psycopg.OperationalError as error:
        if closed():
            raise SessionClosed() from None
        raise StorageAway(f"there is no connection to {where}: {first_line(error)}") from error
    except psycopg.Error as error:
        raise StorageFailed(f"the database {where} failed: {first_line(error)}") from error
