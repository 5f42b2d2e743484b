"""Decides which days of a changelog are closed and can be archived, and which days are old enough to be dropped.

The day of a row is the day of its commit time, in UTC. A day is closed when the changelog has reached a time one hour
after the day's end. If changes of a day arrive even later, they go into another file of this day.
"""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from changelog.connectors.sinks.files.layout import NotWholeError, log_file, opened, refuse_holes, sequences
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import OF_CHANGELOG

CLOSES_AFTER = timedelta(hours=1)
"""A day is closed when the changelog has reached a time this long after the day's end."""

KEPT = 2
"""How many of the newest log files are never deleted. When the service starts, it needs the newest file, or the file
before it if the newest file is damaged."""

_COMMITTED_AT = SCHEMA.get_field_index("committed_at")


def open_day(at: datetime) -> date:
    """Returns the first day that is not closed when the changelog has reached this time."""
    return (at.astimezone(UTC) - CLOSES_AFTER).date()


def first_kept(at: datetime, keep_days: int) -> str:
    """Returns the first day that is not dropped: `keep_days` days before the day of `at`, as text."""
    return (at.astimezone(UTC).date() - timedelta(days=keep_days)).isoformat()


def to_drop(manifest: Manifest, first: str) -> set[str]:
    """Returns the first day of each file of a day or a level, if it is before the day `first`. Files of the entities in
    `OF_CHANGELOG` do not count.
    """
    return {file.first_day for file in _droppable(manifest) if file.first_day < first}


def to_cut(manifest: Manifest, first: str) -> list[ArchiveFile]:
    """Returns the files of levels that begin before the day `first`, and end on this day or later. Files of the
    entities in `OF_CHANGELOG` do not count.
    """
    return [file for file in _droppable(manifest) if file.first_day < first <= file.day]


def _droppable(manifest: Manifest) -> list[ArchiveFile]:
    return [file for file in manifest.files if file.entity not in OF_CHANGELOG]


def closed_sequences(path: Path, archived: int, before: date | None = None) -> list[int]:
    """Returns the numbers of the log files in `path` that can be archived now. Files with numbers up to `archived` are
    in the archive already.

    A file can be archived if all its changes are of days before the date `before`, and if that is also true of all
    older files. By default, `before` is the first day that is not closed. The newest `KEPT` files are never included.
    Raises ChangelogError if a file is missing, or if a file that has to be read is damaged.
    """
    sequences_present = sequences(path)
    refuse_holes(path, sequences_present, archived)
    if len(sequences_present) <= KEPT:
        return []
    first_open_day = before or open_day(_newest_at(path, sequences_present[-1]))
    closed_files = []
    for sequence in sequences_present[:-KEPT]:
        if sequence > archived:
            if _newest_at(path, sequence).astimezone(UTC).date() >= first_open_day:
                break
            closed_files.append(sequence)
    return closed_files


def _newest_at(path: Path, sequence: int) -> datetime:
    """Returns the newest commit time in a log file. Reads it from the file's footer."""
    try:
        with opened(log_file(path, sequence)) as parquet:
            groups = (parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups))
            newest_at: datetime = max(group.column(_COMMITTED_AT).statistics.max for group in groups)
            return newest_at
    except NotWholeError as damage:
        hint = "if this is the newest file, the service sets it aside when it starts; otherwise, restore it from a copy"
        raise damage.error(hint) from damage
