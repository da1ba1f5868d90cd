"""The default location of the database."""

import os
from pathlib import Path

from ..errors import StorageFailed


def data_file() -> str:
    """The default database file in the user's data directory; creates the directory."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    folder = Path(home) / "ackflow"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(
            f"cannot create {folder}: {error.strerror}; give another file with --db"
        ) from None
    return str(folder / "ackflow.db")
