"""Decides which files of an archive are merged.

Files should be merged soon, so that there are few, but each row should be rewritten only a few times. So a merge takes
the newest files. It takes an older file only if this file is not much larger than all newer files together. As a
result, older files are larger, and the number of files grows only with the logarithm of the number of rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest

GROWTH = 4
"""An older file or level is merged with all newer ones, unless it has more than this many times as many rows as they
have together.
"""


def to_merge(manifest: Manifest, before: date, files_min: int = 2) -> list[list[ArchiveFile]]:
    """Returns groups of files to merge. A group becomes one file, or a few files if it has very many rows.

    A group has the files of one entity and of one day before the date `before`. It has at least `files_min` files.
    """
    return [files for files in _days(manifest, before) if len(files) >= files_min]


def to_merge_newest(manifest: Manifest) -> list[list[ArchiveFile]]:
    """Returns groups of files to merge, so that each day has few files while new files are added to it.

    A group has the newest files of one entity and day, but perhaps not all files.
    """
    groups = (_newest([[file] for file in _by_age(files)]) for files in _days(manifest, date.max))
    return [files for files in groups if len(files) > 1]


def to_level(manifest: Manifest, before: date) -> list[list[ArchiveFile]]:
    """Returns groups of files to merge. Each group becomes one level.

    A group has files of one entity: its files of all days before the date `before`, and the files of its newest levels.
    If an entity has no files of such days, it has no group.
    """
    levels: dict[str, dict[str, list[ArchiveFile]]] = defaultdict(lambda: defaultdict(list))
    for file in manifest.files:
        if file.level:
            levels[file.entity][file.level].append(file)
    days: dict[str, list[ArchiveFile]] = defaultdict(list)
    for files in _days(manifest, before):
        days[files[0].entity] += files
    return [
        _newest([files, *sorted(levels[entity].values(), key=_last, reverse=True)])
        for entity, files in sorted(days.items())
    ]


def rows_of(files: Iterable[ArchiveFile]) -> int:
    """Returns the number of rows of these files."""
    return sum(file.rows for file in files)


def batches_of(groups: Iterable[list[ArchiveFile]], rows_max: int) -> Iterator[list[ArchiveFile]]:
    """Joins small groups until they have about `rows_max` rows, so that one job of Spark can merge many groups."""
    batch: list[ArchiveFile] = []
    for files in groups:
        if batch and rows_of(batch) + rows_of(files) > rows_max:
            yield batch
            batch = []
        batch += files
    if batch:
        yield batch


def _days(manifest: Manifest, before: date) -> list[list[ArchiveFile]]:
    """Returns a list of files for each entity and each day before a date. Files of levels are left out."""
    days: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for file in manifest.files:
        if not file.level and file.day < before.isoformat():
            days[file.entity, file.day].append(file)
    return [files for _, files in sorted(days.items())]


def _by_age(files: Iterable[ArchiveFile]) -> list[ArchiveFile]:
    return sorted(files, key=lambda file: file.last, reverse=True)


def _last(files: Iterable[ArchiveFile]) -> str:
    return max(file.last for file in files)


def _newest(parts: Sequence[Sequence[ArchiveFile]]) -> list[ArchiveFile]:
    """Returns the files of the newest parts: those before the first part that is much larger than all newer ones
    together.

    `parts` are sorted from the newest to the oldest. The newest part is always included.
    """
    newest: list[ArchiveFile] = []
    for part in parts:
        if newest and rows_of(part) > GROWTH * rows_of(newest):
            break
        newest += part
    return newest
