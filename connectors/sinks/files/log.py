"""Reads the changelog that the file sink stores: all rows, the rows after a position, the rows of one entity or key,
and new rows as they are stored.

The changelog begins in the archive (large files that the manifest lists) and continues in the live log (one small file
for each commit, with a sequence number). docs/reference/file-log.md describes the files.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks import unknown_entity
from changelog.connectors.sinks.files.bloom import bloom_filters
from changelog.connectors.sinks.files.layout import (
    NotWholeError,
    find_recovery,
    highest_epoch,
    log_file,
    log_folder,
    marked_sequences,
    opened,
    read_checkpoint_of,
    refuse_holes,
    resume_file,
    sequences,
)
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, read_manifest
from changelog.connectors.sinks.files.selection import Selection
from changelog.connectors.sinks.files.sorting import in_order
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import of_stored
from changelog.envelope.entity import OF_CHANGELOG, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

READ_ROWS = 8192
"""The most rows in one batch that a reader yields."""

_DAMAGED = "restore the file from a copy; if it is the newest one, the next commit of a service sets it aside"


def is_changelog(path: Path) -> bool:
    """Returns whether a folder has a file log or an archive. A changelog on Kafka can have an archive, too."""
    return log_folder(path).is_dir() or resume_file(path).exists() or read_manifest(path) is not None


def read_log(
    path: Path,
    *,
    entity: str | None = None,
    key: str | None = None,
    after: Position | None = None,
    identifier: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the changelog's rows (`changelog.envelope.columnar.batch.SCHEMA`) in the order of their positions: first
    the archive, then the live log.

    Each of `entity`, the canonical text `key`, the position `after` and the stamp's `identifier` restricts the rows.
    Batches are never empty and have at most `READ_ROWS` rows. Raises ChangelogError if there is no changelog, or if it
    cannot be read.
    """
    yield from _pass(path, Selection(entities=_entities(entity), key=key, after=after, identifier=identifier))


def read_together(
    path: Path,
    entities: Collection[str] | None,
    *,
    key: str | None = None,
    after: Position | None = None,
    identifier: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of several entities (None means all), like `read_log`, but in any order.

    Holds only one row group of the archive in memory, because the rows need not be sorted. `key` restricts the rows.
    But a file is read even if `key` is outside the file's range of keys in the manifest.
    """
    names = None if entities is None else sorted(entities)
    selection = Selection(
        entities=names, key=key, after=after, identifier=identifier, ordered=False, trusts_key_ranges=False
    )
    yield from _pass(path, selection)


def follow(
    path: Path,
    *,
    entity: str | None = None,
    key: str | None = None,
    after: Position | None = None,
    wait: Callable[[], bool],
) -> Iterator[pa.RecordBatch]:
    """Yields what `read_log` yields, and then new rows as they are stored.

    Calls `wait()` whenever there are no more rows; the iteration ends if `wait()` returns False.
    """
    selection = Selection(entities=_entities(entity), key=key, after=after)
    sequence = 0
    while True:
        if not sequence or log_file(path, sequence + 1).exists():
            sequence, read_to = yield from _pass(path, selection)
            selection = replace(selection, after=read_to)
        if not wait():
            return


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Returns the last checkpoint of the changelog at `path`, None if there is none.

    Takes no lock, so a service can set a damaged file aside after this function has listed the files, but before it
    opens this one. Then the function tries once more.
    """
    try:
        return find_recovery(path).checkpoint
    except ChangelogError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return find_recovery(path).checkpoint


def counts(path: Path) -> dict[str, dict[str, int]]:
    """Counts the rows of the archive and the live log by entity and op; returns an empty mapping if there are no files.

    Reads only the columns `entity` and `op`. Leaves out the entity `schemas` (versions of columns).
    """
    manifest = read_manifest(path)
    files = [path / file.path for file in manifest.files] if manifest else []
    files += [log_file(path, sequence) for sequence in _live(path, manifest)]
    result: dict[str, dict[str, int]] = {}
    for file in files:
        with _read_whole(file) as parquet:
            table = parquet.read(columns=["entity", "op"], use_threads=False)
        for row in table.group_by(["entity", "op"]).aggregate([([], "count_all")]).to_pylist():
            ops = result.setdefault(row["entity"], {})
            ops[row["op"]] = ops.get(row["op"], 0) + row["count_all"]
    result.pop(SCHEMAS, None)
    return result


@dataclass(frozen=True, slots=True)
class FileLog:
    """The file log at `path`. Implements `Log`; `read` and `follow` yield all rows in the order of their positions."""

    path: Path

    @property
    def where(self) -> str:
        return f"the changelog in {self.path}"

    def read(
        self,
        *,
        entity: str | None = None,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*_entities(entity) or ())
        yield from read_log(self.path, entity=entity, key=key, after=after, identifier=identifier)

    def read_key(self, entity: str, key: str, /) -> Iterator[pa.RecordBatch]:
        yield from self.read(entity=entity, key=TRUNCATE_KEY)  # fast, because this key sorts before all others
        yield from self.read(entity=entity, key=key)

    def read_together(
        self,
        entities: Collection[str] | None = None,
        /,
        *,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*entities or ())
        yield from read_together(self.path, entities, key=key, after=after, identifier=identifier)

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*_entities(entity) or ())
        after = None if last is None else before_last(self.path, last, entity=entity, key=key)
        return follow(self.path, entity=entity, key=key, after=after, wait=wait)

    def recent(self, count: int, /) -> Iterator[pa.RecordBatch]:
        return recent(self.path, count)

    def counts(self) -> dict[str, dict[str, int]]:
        return counts(self.path)

    def checkpoint(self) -> Checkpoint | None:
        return read_checkpoint(self.path)

    def epoch(self) -> int:
        return highest_epoch(self.path)

    def stored_at(self) -> float | None:
        files = [resume_file(self.path), *log_folder(self.path).glob("*.parquet")]
        return max((file.stat().st_mtime for file in files if file.exists()), default=None)

    def _refuse_unknown(self, *entities: str) -> None:
        """Raises ChangelogError (USAGE) if the changelog lacks one of these entities.

        An entity that has no rows yet is known because the checkpoint has its settings. An entity that was removed
        from the configuration is known because the changelog still has its rows.
        """
        unknown = set(entities) - OF_CHANGELOG - _named(self.path)
        checkpoint = self.checkpoint() if unknown else None
        settings = {} if checkpoint is None else checkpoint.settings
        is_empty = checkpoint is None and read_manifest(self.path) is None
        if is_empty or unknown <= settings.keys():
            return
        stored_counts = self.counts()
        for entity in sorted(unknown - stored_counts.keys() - settings.keys()):
            raise unknown_entity(self, entity, {*settings, *stored_counts})


def before_last(path: Path, count: int, *, entity: str | None = None, key: str | None = None) -> Position | None:
    """Returns the position of the selected row just before the last `count` selected rows; None if there is none.

    If `count` is 0, this is the position of the newest row, selected or not. Reads the newest file first. If that file
    has too few rows, reads the newest two files, then the newest four, and so on.
    """
    files = sequences(path)
    if count == 0 and files:
        return _position(log_file(path, files[-1]))
    back = 1
    while True:
        begin = _position(log_file(path, files[-back - 1])) if back < len(files) else None
        newest: deque[str] = deque(maxlen=count + 1)
        for rows in read_log(path, entity=entity, key=key, after=begin):
            newest.extend(rows.column("position").to_pylist())
        if len(newest) > count:
            return Position.parse(newest[0])
        if begin is None:
            return None
        back *= 2


def recent(path: Path, count: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the newest row groups of the live log, as many groups as are needed for `count` rows.

    Leaves out rows of the entity `schemas`.
    """
    if not log_folder(path).is_dir():
        raise _no_log(path)
    to_read = count
    for sequence in reversed(_live(path, read_manifest(path))):
        with _read_whole(log_file(path, sequence)) as parquet:
            first = parquet.metadata.num_row_groups
            while first and to_read > 0:
                first -= 1
                to_read -= parquet.metadata.row_group(first).num_rows
            groups = range(first, parquet.metadata.num_row_groups)
            for rows in parquet.iter_batches(batch_size=READ_ROWS, row_groups=groups, use_threads=False):
                selected = rows.filter(pc.not_equal(rows.column("entity"), SCHEMAS))
                if selected.num_rows:
                    yield of_stored(selected)
        if to_read <= 0:
            return


def _named(path: Path) -> set[str]:
    """Returns the names of the entities in the archive's manifest and in the checkpoint of the newest file. Reads no
    rows.

    Leaves out the checkpoint if the newest file is not whole.
    """
    manifest = read_manifest(path)
    names = {file.entity for file in manifest.files} if manifest else set()
    for sequence in sequences(path)[-1:]:
        with suppress(NotWholeError):
            names |= read_checkpoint_of(log_file(path, sequence)).settings.keys()
    return names


def _entities(entity: str | None) -> Sequence[str] | None:
    return None if entity is None else [entity]


def _pass(path: Path, selection: Selection) -> Generator[pa.RecordBatch, None, tuple[int, Position | None]]:
    """Reads each file that is stored now, and yields the selected rows.

    Returns the sequence of the newest live file (0 if there is none), and the position after which the next pass has to
    begin.
    """
    manifest = read_manifest(path)
    if manifest is None and not log_folder(path).is_dir():
        raise _no_log(path)
    if manifest:
        yield from _archived(path, manifest, selection)
    live = _live(path, manifest)
    read_to = _later(selection.after, manifest)
    if selection.after is not None:
        live = live[bisect_right(live, selection.after, key=lambda sequence: _position(log_file(path, sequence))) :]
    to_read = live
    if selection.entities is not None and OF_CHANGELOG.issuperset(selection.entities):
        marked = marked_sequences(path, live)
        to_read = [sequence for sequence in live if sequence in marked]
    for sequence in to_read:
        file = log_file(path, sequence)
        # Only the last file's position is needed. If there are many tables, parsing a checkpoint for its position takes
        # longer than reading the rows of its file.
        if sequence == to_read[-1]:
            read_to = _position(file)
        yield from _rows(file, selection)
    return (live[-1] if live else 0), read_to


def _no_log(path: Path) -> ChangelogError:
    return ChangelogError(
        Kind.PRECONDITION, f"there is no file log in {path}", hint="`changelog run` creates it; see [sink] path"
    )


def _later(after: Position | None, manifest: Manifest | None) -> Position | None:
    """Returns the later of `after` and the end of the archive.

    A reader that follows the changelog continues from there if it has read no live file.
    """
    last = max((file.last for file in manifest.files), default="") if manifest else ""
    return Position.parse(last) if last > str(after or "") else after


def _live(path: Path, manifest: Manifest | None) -> list[int]:
    """Returns the sequences of the live files, which continue the archive. Raises ChangelogError if one is missing."""
    archived = manifest.log.last if manifest else 0
    present_sequences = sequences(path)
    refuse_holes(path, present_sequences, archived)
    return [sequence for sequence in present_sequences if sequence > archived]


def _position(file: Path) -> Position:
    try:
        position = read_checkpoint_of(file).position
    except NotWholeError as damage:
        raise damage.error(_DAMAGED) from damage
    assert position is not None
    return position


def _rows(file: Path, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yields the selected rows of one file.

    If few rows are selected, first reads only the columns that decide the selection, and then all columns of those row
    groups that have a selected row.
    """
    with _read_whole(file) as parquet, bloom_filters(file) as filters:
        for index in range(parquet.metadata.num_row_groups):
            if not selection.may_be_in_group(parquet.metadata.row_group(index), filters.may_hold):
                continue
            if selection.is_rare and not _is_selected(parquet, index, selection):
                continue
            for rows in parquet.iter_batches(batch_size=READ_ROWS, row_groups=[index], use_threads=False):
                mask = selection.mask(rows)
                selected = rows if mask is None else rows.filter(mask)
                if selected.num_rows:
                    yield of_stored(selected)


def _is_selected(parquet: Any, index: int, selection: Selection) -> bool:
    """Returns whether a row group has a selected row; reads only the columns that decide it."""
    batches = parquet.iter_batches(
        batch_size=READ_ROWS, row_groups=[index], columns=selection.columns(), use_threads=False
    )
    return any(pc.any(selection.mask(rows)).as_py() for rows in batches)


@contextmanager
def _read_whole(file: Path) -> Iterator[Any]:
    """Opens a Parquet file like `layout.opened`, but raises ChangelogError (MALFORMED) if the file is not whole."""
    try:
        with opened(file, page_checksum_verification=True, pre_buffer=False) as parquet:
            yield parquet
    except NotWholeError as damage:
        raise damage.error(_DAMAGED) from damage


def _archived(path: Path, manifest: Manifest, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yields the archive's selected rows. If the selection is ordered, they are in the order of their positions.

    For that order, the rows of files whose ranges of positions overlap are sorted together.
    """
    files = list(filter(selection.may_be_in_file, manifest.files))
    if not selection.ordered:
        for file in files:
            yield from _rows(path / file.path, selection)
        return
    for group in _overlapping(sorted(files, key=lambda file: file.first)):
        yield from in_order((rows for file in group for rows in _rows(path / file.path, selection)), rows_max=READ_ROWS)


def _overlapping(files: list[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Groups files into runs. Within a run, the files' ranges of positions overlap.

    `files` are sorted by their first position.
    """
    run: list[ArchiveFile] = []
    last = ""
    for file in files:
        if run and file.first > last:
            yield run
            run, last = [], ""
        run.append(file)
        last = max(last, file.last)
    if run:
        yield run
