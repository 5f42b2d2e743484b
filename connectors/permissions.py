"""Who may read what we write, whatever the umask is: a container has none, and a hardened host a strict one."""

import os
from pathlib import Path
from typing import Final

DATA_FILE: Final = 0o640
"""Rows, keys, positions and configuration: the owner writes, the group reads, and nobody else sees them."""
DATA_FOLDER: Final = 0o750

PUBLIC_FILE: Final = 0o644
"""What holds no rows, and other programs read: schema files, figures for Prometheus, an archive's manifest."""
PUBLIC_FOLDER: Final = 0o755


def make_file(path: Path, mode: int) -> None:
    """An empty file, with exactly this mode; one that is there stays as it is, with what its owner gave it.

    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int) -> None:
    """The folder and the parents that are missing, with exactly this mode; what is there stays as it is.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(mode)
