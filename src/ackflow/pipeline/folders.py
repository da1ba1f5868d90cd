"""Folders that a pipeline writes to."""

from pathlib import Path

from ..errors import InvalidArgument


def made(folder: Path) -> Path:
    """The folder, made if it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be a folder: {error.strerror}") from error
    return folder
