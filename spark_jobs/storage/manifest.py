"""The manifest: which files make up an archive, and how a change of them is committed (docs/how-to/archive.md).

A store is one folder that Spark can reach. Readers take the files that the newest whole manifest lists, and no others.
A commit makes the manifest of the next number, which no other run may have made: nothing is replaced.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from connectors.sinks.files.layout import (
    MANIFEST_FORMAT,
    ArchiveFile,
    Manifest,
    Replaced,
    manifest_number,
    newest_manifest,
    parse_manifest,
)
from envelope.errors import ChangelogError, Kind
from spark_jobs.storage.store import Store

if TYPE_CHECKING:
    pass

__all__ = ["ArchiveFile", "Manifest", "Replaced"]  # and all that is defined here

FOLDER = "manifest"
ARCHIVE = "archive"

TRIES = 20
"""How often a commit gives way to others."""

NOTHING = Manifest(format=MANIFEST_FORMAT, log=Replaced(first=1, last=0), files=())
"""The manifest of a store that has none yet."""


def newest(store: Store) -> Manifest | None:
    """The newest whole manifest, None when the store has none; raises ChangelogError when it cannot be read."""
    return newest_manifest(numbers(store), store.read)


def read(store: Store, path: str) -> Manifest | None:
    """The manifest at a path, None when it is not whole."""
    return parse_manifest(store.read(path), path)


def numbers(store: Store) -> dict[int, str]:
    """The manifests that are there, whole or not: by number, where each is."""
    numbered = ((number_of(file.path), file.path) for file in store.files(FOLDER))
    return {number: path for number, path in numbered if number is not None}


def number_of(path: str) -> int | None:
    """The number of the manifest that a path is of, None when it is of none."""
    return manifest_number(path.removeprefix(f"{FOLDER}/"))


def path_of(number: int) -> str:
    """Where the manifest of a number is."""
    return f"{FOLDER}/{number}.json"


def commit(store: Store, change: Callable[[Manifest], Manifest], *, at: datetime) -> Manifest:
    """Commits what `change` makes of the newest manifest, and gives it.

    1. The newest whole manifest is read, and changed.
    2. The next number is created, if nobody did so meanwhile: else all begins anew, on what the other one made.
    3. It is read back, for stores that can only try to refuse the second of two writers.

    So `change` is called once or more, and has to look whether what it was made for still holds. Raises
    ChangelogError, IN_USE, when another run overwrote what this one created.
    """
    writer = secrets.token_hex(8)
    for _ in range(TRIES):
        present = numbers(store)
        before = newest_manifest(present, store.read) or NOTHING
        after = replace(change(before), at=at.astimezone(UTC).isoformat(), writer=writer)  # 1
        path = path_of(max(present, default=0) + 1)
        if not store.create(path, after.to_json()):  # 2
            continue
        stored = read(store, path)  # 3
        if stored is not None and stored.writer == writer:
            return after
        break
    raise ChangelogError(
        Kind.IN_USE, f"another run writes manifests in {store.root} at the same time", hint="let one run at a time"
    )


# On this machine


# Anywhere else
