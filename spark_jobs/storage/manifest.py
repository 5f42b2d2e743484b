"""Reads and writes manifests. A manifest lists the files of an archive.

Readers read the files that the newest complete manifest lists, and no others. So a change of the archive is *committed*
by a new manifest with the next number. This fails if another run has created a manifest with this number first. No
manifest is ever replaced (docs/how-to/archive.md).
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from changelog.connectors.sinks.files.manifest import (
    MANIFEST_FORMAT,
    ArchiveFile,
    Manifest,
    Replaced,
    manifest_number,
    newest_manifest,
    parse_manifest,
)
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.store import FolderStore

__all__ = ["ArchiveFile", "Manifest", "Replaced"]  # re-exported from the file sink

FOLDER = "manifest"
ARCHIVE = "archive"

TRIES = 20
"""How often a run tries to commit a change before it gives up. A try fails if another run commits first."""

NOTHING = Manifest(format=MANIFEST_FORMAT, log=Replaced(first=1, last=0), files=())
"""An empty manifest, for a store that has no manifest yet."""


def newest(store: FolderStore) -> Manifest | None:
    """Returns the newest complete manifest; None if the store has none. May raise the errors of `store.read`."""
    return newest_manifest(numbers(store), store.read)


def read(store: FolderStore, path: str) -> Manifest | None:
    """Returns the manifest at a path; None if it is incomplete."""
    return parse_manifest(store.read(path), path)


def numbers(store: FolderStore) -> dict[int, str]:
    """Returns the paths of all manifests, by their numbers. Incomplete manifests are included."""
    numbered = ((number_of(file.path), file.path) for file in store.files(FOLDER))
    return {number: path for number, path in numbered if number is not None}


def number_of(path: str) -> int | None:
    """Returns the number in the path of a manifest; None if it is not such a path."""
    return manifest_number(path.removeprefix(f"{FOLDER}/"))


def path_of(number: int) -> str:
    """Returns the path of the manifest with this number."""
    return f"{FOLDER}/{number}.json"


def commit(store: FolderStore, change: Callable[[Manifest], Manifest], *, at: datetime) -> Manifest:
    """Applies `change` to the newest manifest, stores the result as a new manifest, and returns it.

    1. The newest complete manifest is read and changed.
    2. The result is created as the manifest with the next number. If another run created a manifest with this number
       first, everything starts again from 1.
    3. The new manifest is read back: if two runs write at the same moment, some stores let the second overwrite the
       file of the first.

    `change` can be called several times, so each call must check its preconditions. Raises ChangelogError (IN_USE) if
    another run overwrote the manifest that this run created, or if another run was first in each of `TRIES` tries.
    """
    writer = secrets.token_hex(8)
    for _ in range(TRIES):
        present = numbers(store)
        before = newest_manifest(present, store.read) or NOTHING
        after = replace(change(before), at=at.astimezone(UTC).isoformat(), writer=writer)  # 1
        path = path_of(max(present, default=0) + 1)
        if not store.create(path, after.to_json()):  # 2
            continue
        winner = read(store, path)  # 3
        if winner is not None and winner.writer == writer:
            return after
        break
    raise ChangelogError(
        Kind.IN_USE,
        f"another run writes manifests in {store.root} at the same time",
        hint="start only one run at a time",
    )
