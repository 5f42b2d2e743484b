"""Lets the servers of tests keep their databases in memory, where the system allows that.

Each test has a database of its own, which consists of 300 files. On ext4, creating a file takes longer if many files
were deleted in the last minutes, because ext4 then searches for an inode that was not in use lately. This search took
a sixth of the suite's CPU time.
"""

import os
import shutil
import tempfile
from pathlib import Path

from changelog.connectors.servers.unprivileged import DATA_VARIABLE

SHARED_MEMORY = Path("/dev/shm")

ROOM_BYTES = 8 << 30
"""How much memory must be available. All databases together take 2 GiB at most, and the rest is for the servers."""


def folder_in_memory() -> Path | None:
    """Makes a folder in memory. This process, and the processes that it starts, find its path in DATA_VARIABLE.

    If the variable is already set, or if there is too little room, makes no folder and returns None.
    """
    if DATA_VARIABLE in os.environ or not SHARED_MEMORY.is_dir() or _room_bytes() < ROOM_BYTES:
        return None
    folder = Path(tempfile.mkdtemp(prefix="changelog-tests-", dir=SHARED_MEMORY))
    folder.chmod(0o711)  # the servers' user must be able to enter its own folders there
    os.environ[DATA_VARIABLE] = str(folder)
    return folder


def remove(folder: Path) -> None:
    """Removes a folder that `folder_in_memory` made."""
    del os.environ[DATA_VARIABLE]
    shutil.rmtree(folder, ignore_errors=True)


def _room_bytes() -> int:
    """Returns how many bytes can still be stored in memory. Returns 0 if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return 0
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return min(available, shutil.disk_usage(SHARED_MEMORY).free)
