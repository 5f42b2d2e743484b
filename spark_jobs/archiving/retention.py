"""Which days of a changelog are closed, which files of theirs are to be made one, and which days are dropped.

A day is of the commit time, in UTC. It is closed once what is published has passed its end by an hour; what is
committed or arrives later goes into a further file of that day.
"""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from connectors.sinks.files.layout import (
    ArchiveFile,
    Manifest,
    NotWholeError,
    log_file,
    opened,
    refuse_holes,
    sequences,
)
from envelope.batch import SCHEMA
from envelope.entity import OF_CHANGELOG

CLOSES_AFTER = timedelta(hours=1)
"""So much behind its end a day is closed."""

KEPT = 2
"""How many of the newest log files always stay: the recovery point, and the one before, should that be damaged."""

_COMMITTED_AT = SCHEMA.get_field_index("committed_at")


def open_day(at: datetime) -> date:
    """The first day that is not closed, once what is published has come to a time."""
    return (at.astimezone(UTC) - CLOSES_AFTER).date()


def to_merge(manifest: Manifest, before: date, files_min: int = 2) -> list[list[ArchiveFile]]:
    """The files of each entity's day before a date, where they are `files_min` or more."""
    days: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for file in manifest.files:
        if file.day < before.isoformat():
            days[file.entity, file.day].append(file)
    return [files for _, files in sorted(days.items()) if len(files) >= files_min]


def to_drop(manifest: Manifest, today: date, keep_days: int) -> set[str]:
    """The days that are dropped when today and the `keep_days` before it are kept; rows of no table always are."""
    first = (today - timedelta(days=keep_days)).isoformat()
    return {file.day for file in manifest.files if file.entity not in OF_CHANGELOG and file.day < first}


def closed_sequences(path: Path, archived: int, before: date | None = None) -> list[int]:
    """The log files of `path` behind the sequence `archived`, up to the first that holds more than days before a date.

    By default these are the closed days. The newest `KEPT` files are never among them. Raises ChangelogError when one
    is missing or damaged.
    """
    present = sequences(path)
    refuse_holes(path, present, archived)
    if len(present) <= KEPT:
        return []
    until = before or open_day(_newest_at(path, present[-1]))
    closed = []
    for sequence in present[:-KEPT]:
        if sequence > archived:
            if _newest_at(path, sequence).astimezone(UTC).date() >= until:
                break
            closed.append(sequence)
    return closed


def _newest_at(path: Path, sequence: int) -> datetime:
    """The newest commit time in a log file, by its footer."""
    try:
        with opened(log_file(path, sequence)) as parquet:
            groups = (parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups))
            newest_at: datetime = max(group.column(_COMMITTED_AT).statistics.max for group in groups)
            return newest_at
    except NotWholeError as damage:
        hint = "a damaged newest file is set aside when the service starts; restore any other from a copy"
        raise damage.error(hint) from damage
