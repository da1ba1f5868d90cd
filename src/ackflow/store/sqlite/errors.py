"""The errors of SQLite as ours."""

import contextlib
import os
from collections.abc import Iterator

import apsw

from ...errors import NotADatabase, SessionClosed, StorageBusy, StorageFailed, StorageFull


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn the errors of SQLite into ours, with a sentence that says what to do."""
    try:
        yield
    except (apsw.ConnectionClosedError, apsw.CursorClosedError):
        raise SessionClosed() from None  # it waited for its turn while another thread closed
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
