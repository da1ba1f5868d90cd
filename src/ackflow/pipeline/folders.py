"""Folders that a pipeline writes to."""

import errno
import os
from pathlib import Path

from ..errors import InvalidArgument


def possible(folder: Path) -> Path:
    """The folder, which is there or can be made; nothing is made yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    why = None
    if not there.is_dir():
        why = errno.EEXIST if there == folder else errno.ENOTDIR
    elif not os.access(there, os.W_OK | os.X_OK):
        why = errno.EACCES
    if why is not None:
        raise InvalidArgument(f"{folder} cannot be a folder: {os.strerror(why)}")
    return folder


def made(folder: Path) -> Path:
    """The folder, made if it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be a folder: {error.strerror}") from error
    return folder
