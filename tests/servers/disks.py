"""File systems that are small enough to become full."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILLER = "filler"
_MIB = bytes(1 << 20)


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[bool]:
    """Mounts a file system of so many MiB at `folder`, which is made; False where this process may not mount."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
    may = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        # Whoever still ends may hold a file open for a moment: nobody sees the file system from here on.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leaves not a byte of the file system at `disk`."""
    with (disk / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(_MIB):
            pass


def make_room(disk: Path) -> None:
    """Takes away what `fill` left."""
    (disk / FILLER).unlink()
