"""What the system must have on disk before others may rely on it. Both raise OSError."""

import errno
import os
from pathlib import Path

from connectors import permissions


def make_folder(folder: Path, mode: int = permissions.DATA_FOLDER) -> None:
    """The folder, with the parents that are missing, each durable in its own parent; others may make them meanwhile."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    try:
        permissions.make_folder(folder, mode)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def sync(path: Path) -> None:
    """A file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
