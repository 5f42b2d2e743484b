"""Decides which days of a changelog are closed, which of their files are merged, and which days are dropped.

A row's day is the day of its commit time, in UTC. A day is closed when the changelog has reached a time one hour after
the day's end. Changes that arrive even later go into another file of the day.
"""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from changelog.connectors.sinks.files.layout import NotWholeError, log_file, opened, refuse_holes, sequences
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import OF_CHANGELOG

CLOSES_AFTER = timedelta(hours=1)
"""A day is closed this long after its end."""

KEPT = 2
"""How many of the newest log files are never deleted. The service recovers from the newest file, or, if that file is
damaged, from the file before it."""

_COMMITTED_AT = SCHEMA.get_field_index("committed_at")


def open_day(at: datetime) -> date:
    """Returns the first day that is not closed when the changelog has reached this time."""
    return (at.astimezone(UTC) - CLOSES_AFTER).date()


def to_merge(manifest: Manifest, before: date, files_min: int = 2) -> list[list[ArchiveFile]]:
    """Returns the files to merge, in groups.

    A group has the files of one entity and of one day before the date `before`. It has at least `files_min` files.
    """
    days: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for file in manifest.files:
        if file.day < before.isoformat():
            days[file.entity, file.day].append(file)
    return [files for _, files in sorted(days.items()) if len(files) >= files_min]


def to_drop(manifest: Manifest, today: date, keep_days: int) -> set[str]:
    """Returns the days to drop: all except today and the `keep_days` days before it. Files of `OF_CHANGELOG` are
    ignored.
    """
    first_kept = (today - timedelta(days=keep_days)).isoformat()
    return {file.day for file in manifest.files if file.entity not in OF_CHANGELOG and file.day < first_kept}


def closed_sequences(path: Path, archived: int, before: date | None = None) -> list[int]:
    """Returns the numbers of the log files in `path` that follow the number `archived` and have only days before a
    date. By default, the date is the first day that is not closed.

    The newest `KEPT` files are never among them. Raises ChangelogError if a file is missing or damaged.
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
    """Reads the newest commit time in a log file from the file's footer."""
    try:
        with opened(log_file(path, sequence)) as parquet:
            groups = (parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups))
            newest_at: datetime = max(group.column(_COMMITTED_AT).statistics.max for group in groups)
            return newest_at
    except NotWholeError as damage:
        hint = "if this is the newest file, the service sets it aside when it starts; otherwise, restore it from a copy"
        raise damage.error(hint) from damage
