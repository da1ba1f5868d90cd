"""Translation of SQLite errors."""

import contextlib
import os
from collections.abc import Iterator

import apsw

from ...errors import NotADatabase, SessionClosed, StorageBusy, StorageFailed, StorageFull


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate errors of SQLite, with a message that says what to do."""
    try:
        yield
    except (apsw.ConnectionClosedError, apsw.CursorClosedError):
        raise SessionClosed() from None  # another thread closed the store while this one waited
    except apsw.FullError:
        raise StorageFull() from None
    except (apsw.BusyError, apsw.LockedError):
        raise StorageBusy() from None
    except apsw.NotADBError:
        raise NotADatabase(f"{path} is not an Ackflow database") from None
    except apsw.CantOpenError:
        folder = os.path.dirname(os.path.abspath(path))
        why = "it cannot be created there" if os.path.isdir(folder) else f"{folder} does not exist"
        raise StorageFailed(f"cannot open {path}: {why}") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError):
        raise StorageFailed(f"cannot write {path}: it is read-only") from None
    except apsw.Error as error:
        raise StorageFailed(f"the database {path} failed: {error}") from error
