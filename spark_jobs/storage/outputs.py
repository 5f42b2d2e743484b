"""Replaces the content of a job's output. Each run writes a new folder. The newest record names the folder that readers
must use.

If the output is a folder of this machine, the link `<output>/current` also leads to the folder that readers must use.
The functions here set this link, and delete the folders of earlier runs.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.store import FolderStore

CURRENT: Final = "current"


def lead(store: FolderStore, path: str) -> None:
    """Makes `current` a link to a folder. Replaces the old link atomically. Does nothing if the store is not on this
    machine.

    Raises ChangelogError (STORAGE) if the link cannot be replaced.
    """
    if not store.root.startswith("file:"):
        return
    folder = Path(store.root.removeprefix("file:"))
    temporary_link = folder / f".{CURRENT}-{secrets.token_hex(4)}"
    try:
        temporary_link.symlink_to(path)
        temporary_link.replace(folder / CURRENT)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ChangelogError(
            Kind.STORAGE, f"{folder / CURRENT}: {reason}", hint="it should be the link that this job creates"
        ) from error


def clear(store: FolderStore, folder: str, paths_in_use: Sequence[str]) -> None:
    """Deletes the folders of earlier runs in `folder`, except those in `paths_in_use`."""
    paths = {"/".join(file.path.split("/")[:2]) for file in store.files(folder)}
    for path in paths.difference(paths_in_use):
        store.delete(path)
