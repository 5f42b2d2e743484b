"""Defines the modes of the files and folders that we write, and makes files and folders with exactly these modes.

The modes do not depend on the umask. Containers often have a umask of 0, with which everybody could read our files.
Hardened hosts have a strict umask, with which the group could not read them.
"""

import os
from pathlib import Path
from typing import Final

DATA_FILE: Final = 0o640
"""The mode of files with rows, keys, positions or configuration: the owner can write them and the group can read them.

Nobody else has access.
"""
DATA_FOLDER: Final = 0o750

PUBLIC_FILE: Final = 0o644
"""The mode of files that other programs read, and that have no rows: schema files, Prometheus metrics, an archive's
manifest.
"""
PUBLIC_FOLDER: Final = 0o755


def make_file(path: Path, mode: int) -> None:
    """Creates an empty file with exactly this mode. An existing file keeps its content and its mode. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int) -> None:
    """Creates a folder and its missing parents, all with exactly this mode. Existing folders keep their mode.

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
