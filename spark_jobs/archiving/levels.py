"""Merges the files of days into levels, and removes dropped days from levels (docs/how-to/archive.md).

A level has the rows that one entity has for many days, in files with disjoint ranges of keys. So a reader that needs
the changes of one key opens only one file of each level. Without levels, it would open a file of each day.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.envelope.entity import OF_CHANGELOG
from changelog.spark_jobs.archiving.files import Merged, listed, read_archived, swap, without
from changelog.spark_jobs.archiving.merging import batches_of, rows_of, to_level
from changelog.spark_jobs.archiving.retention import first_kept, to_cut, to_drop
from changelog.spark_jobs.archiving.write_files import ArchiveRun, day_of_commit, write_level
from changelog.spark_jobs.storage.manifest import ArchiveFile, Manifest, commit

ROWS_AT_ONCE = 20_000_000
"""About how many rows are merged before a manifest is written. Even if a level has more rows, its files all become
visible in the same manifest."""


def compact_levels(run: ArchiveRun, *, before: date) -> Merged:
    """Merges the files of all days before `before`, and the newest levels, to one new level for each entity.

    Drops repeats: if several rows have the same entity, partition and position, one of them stays. Raises
    ChangelogError (IN_USE) if another run replaced or dropped the same files at the same time.
    """
    merged = Merged()
    for old_files in batches_of(to_level(run.manifest(), before), ROWS_AT_ONCE):
        rows = read_archived(run, old_files)
        with write_level(run, rows, _days(old_files), row_count=rows_of(old_files)) as written_files:
            merged += swap(run, old_files, written_files)
        run.reach("archive:committed")
    return merged


def drop_days(run: ArchiveRun, *, keep_days: int) -> Sequence[str]:
    """Drops all days from the manifest, except today and the `keep_days` days before today. Returns the first day of
    each file that was dropped or lost days.

    If a level has both dropped days and days that stay, its files are replaced by files without the rows of dropped
    days. One manifest makes all this visible at once, because a reader that finds a row assumes that all later rows are
    there, too. All rows of the entities `schemas` and `gaps` stay, because other rows that stay may need them.
    """
    first = first_kept(run.at, keep_days)
    manifest = run.manifest()
    dropped_days, old_files = to_drop(manifest, first), to_cut(manifest, first)
    if not dropped_days:
        return []
    if not old_files:
        commit(run.store, lambda newest: _dropped(newest, first), at=run.at)
    else:
        rows = read_archived(run, old_files).where(day_of_commit() >= F.lit(first).cast("date"))
        days = {entity: (max(begin, first), end) for entity, (begin, end) in _days(old_files).items()}
        with write_level(run, rows, days, row_count=rows_of(old_files)) as written_files:
            new_files = listed(old_files, written_files)

            def cut(newest: Manifest) -> Manifest:
                rest = _dropped(without(run.store, newest, old_files), first)
                return replace(rest, files=(*rest.files, *new_files))

            commit(run.store, cut, at=run.at)
    run.reach("archive:dropped")
    return sorted(dropped_days)


def _dropped(manifest: Manifest, first: str) -> Manifest:
    """Returns the manifest without the files whose rows are all older than the day `first`."""
    files = tuple(file for file in manifest.files if file.entity in OF_CHANGELOG or file.day >= first)
    return replace(manifest, files=files)


def _days(files: Iterable[ArchiveFile]) -> Mapping[str, tuple[str, str]]:
    """Returns, for each entity, the first and the last day for which it has rows in these files."""
    days: dict[str, tuple[str, str]] = {}
    for file in files:
        first, last = days.get(file.entity, (file.first_day, file.day))
        days[file.entity] = min(first, file.first_day), max(last, file.day)
    return days
