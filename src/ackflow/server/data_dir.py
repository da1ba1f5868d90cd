"""Where data lies when nobody says so."""

import os
from pathlib import Path

from ..errors import StorageFailed


def data_file() -> str:
    """The default database, in the user's data directory, which is made if it is not there."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    folder = Path(home) / "ackflow"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"cannot make {folder}: {error.strerror}; name another file") from None
    return str(folder / "ackflow.db")
