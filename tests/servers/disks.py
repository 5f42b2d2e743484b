"""Mounts file systems that are small enough to fill up, and fills them."""

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
    """Creates `folder`, and mounts a file system of `mib` MiB there. Yields whether this process may mount."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
    may_mount = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may_mount or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        # A process that is still ending may keep a file open for a moment. With `--lazy`, umount does not fail then.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fills the file system at `disk` to its last byte."""
    with (disk / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(_MIB):
            pass


def make_room(disk: Path) -> None:
    """Deletes the file that `fill` wrote."""
    (disk / FILLER).unlink()
