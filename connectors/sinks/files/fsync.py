"""Makes folders and files durable, so that they survive a crash of the machine. Both functions may raise OSError."""

import errno
import os
from pathlib import Path

from changelog.connectors import permissions


def make_folder(folder: Path, mode: int = permissions.DATA_FOLDER) -> None:
    """Makes a folder and its missing parents, and makes the entry of each new folder durable in its parent.

    Another process may make the same folders at the same time.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    try:
        permissions.make_folder(folder, mode)
    except FileExistsError:  # a file, not a folder, has this name
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def sync(path: Path) -> None:
    """Makes the content of a file durable; for a folder, the names of the files and folders in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
