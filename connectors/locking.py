"""Locks a folder by a file inside it, so that only one process uses the folder at a time."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from changelog.connectors.permissions import DATA_FILE, make_file
from changelog.envelope.errors import ChangelogError


def take_lock(file: Path, in_use: Callable[[str], ChangelogError]) -> int:
    """Locks a file, and writes this process's id into it. Creates the file if it does not exist.

    Returns the file's descriptor. The lock is held until the descriptor is closed or the process ends. If another
    process holds the lock, calls `in_use` with a text such as "process 1234", and raises the error that it returns.
    Raises OSError if the file cannot be used.
    """
    make_file(file, DATA_FILE)
    lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(lock)
        raise in_use(f"process {holder}") from error
    except OSError:
        os.close(lock)
        raise
    return lock
