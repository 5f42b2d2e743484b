"""Reads the file log: whole, from a position on, one entity or one key, and as it grows.

docs/reference/file-log.md describes the files.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.sinks import unknown_entity
from connectors.sinks.files.layout import (
    ArchiveFile,
    Manifest,
    NotWholeError,
    find_recovery,
    highest_epoch,
    log_file,
    log_folder,
    marked_sequences,
    opened,
    read_checkpoint_of,
    read_manifest,
    refuse_holes,
    resume_file,
    sequences,
)
from envelope.checkpoint import Checkpoint
from envelope.columnar.batch import SCHEMA, of_stored
from envelope.entity import OF_CHANGELOG, SCHEMAS
from envelope.errors import ChangelogError, Kind
from envelope.position import Position

_SCHEMAS = pa.scalar(SCHEMAS)

READ_ROWS = 8192
"""The most rows of a batch that a reader gives."""

_DAMAGED = "a damaged newest file is set aside when the service starts; restore any other from a copy"


def read_log(
    path: Path, *, entity: str | None = None, key: str | None = None, after: Position | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads the changelog's rows (`envelope.columnar.batch.SCHEMA`) in the order of their positions: archive, then log.

    Only those of `entity`, of the canonical text `key` and behind `after`, where given. Batches are never empty and
    have at most `READ_ROWS` rows. Raises ChangelogError when there is no log, or it cannot be read.
    """
    yield from _pass(path, _Wanted(entities=_entities(entity), key=key, after=after))


def read_together(path: Path, entities: Collection[str]) -> Iterator[pa.RecordBatch]:
    """As `read_log`, the rows of these entities; in the archive, only those of one entity stand in their order."""
    yield from _pass(path, _Wanted(entities=sorted(entities), key=None, after=None))


def follow(
    path: Path,
    *,
    entity: str | None = None,
    key: str | None = None,
    after: Position | None = None,
    wait: Callable[[], bool],
) -> Iterator[pa.RecordBatch]:
    """As `read_log`, and then what is added to it; `wait()` is called between looks, and ends it by giving False."""
    wanted = _Wanted(entities=_entities(entity), key=key, after=after)
    sequence = 0
    while True:
        if not sequence or log_file(path, sequence + 1).exists():
            sequence, reached = yield from _pass(path, wanted)
            wanted = replace(wanted, after=reached)
        if not wait():
            return


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The last checkpoint of the log at `path`, None when there is none; takes no lock."""
    return find_recovery(path).checkpoint


def counts(path: Path) -> dict[str, dict[str, int]]:
    """Rows by entity and op, archive included, without the versions of columns; reads no other column.

    Empty when there is no log.
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
    """The file log at `path`. Implements `Log`; all rows stand in the order of their positions."""

    path: Path

    @property
    def where(self) -> str:
        return f"the changelog in {self.path}"

    def read(
        self, *, entity: str | None = None, key: str | None = None, after: Position | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*_entities(entity) or ())
        yield from read_log(self.path, entity=entity, key=key, after=after)

    def read_together(self, entities: Collection[str], /) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*entities)
        yield from read_together(self.path, entities)

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        self._refuse_unknown(*_entities(entity) or ())
        after = None if last is None else before_last(self.path, last, entity=entity, key=key)
        yield from follow(self.path, entity=entity, key=key, after=after, wait=wait)

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
        """An entity is known by its settings before it has rows, and by its rows when it is no longer configured."""
        unknown = set(entities) - OF_CHANGELOG
        checkpoint = self.checkpoint() if unknown else None
        if checkpoint is None or unknown <= checkpoint.settings.keys():
            return
        stored = self.counts()
        for entity in sorted(unknown - stored.keys() - checkpoint.settings.keys()):
            raise unknown_entity(self, entity, {*checkpoint.settings, *stored})


def before_last(path: Path, count: int, *, entity: str | None = None, key: str | None = None) -> Position | None:
    """The position behind which the last `count` wanted rows stand, None when these are all.

    Looks at the newest file, then at twice as many, and so on.
    """
    files = sequences(path)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What a reader asked for; without `entities`, all but the versions of columns."""

    entities: Sequence[str] | None
    key: str | None
    after: Position | None

    def columns(self) -> list[str]:
        """The columns that decide whether a row is wanted."""
        given = {"key": self.key, "position": self.after}
        return ["entity", *(name for name, value in given.items() if value is not None)]

    def may_be_in(self, group: Any) -> bool:
        """Whether the statistics of a row group leave the possibility that it holds a wanted row."""
        for name, values in (("entity", self.entities), ("key", None if self.key is None else [self.key])):
            bounds = group.column(SCHEMA.get_field_index(name)).statistics
            if values is None or not bounds or not bounds.has_min_max:
                continue
            if not any(bounds.min <= value <= bounds.max for value in values):
                return False
        bounds = group.column(SCHEMA.get_field_index("position")).statistics
        return self.after is None or not (bounds and bounds.has_min_max) or bounds.max > str(self.after)

    def of(self, rows: pa.RecordBatch) -> pa.BooleanArray | None:
        """Which rows are wanted, None for all."""
        tests = []
        if self.entities is not None:
            tests.append(pc.is_in(rows.column("entity"), pa.array(self.entities, pa.utf8())))
        elif pc.index(rows.column("entity"), _SCHEMAS).as_py() >= 0:
            tests.append(pc.not_equal(rows.column("entity"), _SCHEMAS))
        if self.key is not None:
            tests.append(pc.equal(rows.column("key"), self.key))
        if self.after is not None:
            tests.append(pc.greater(rows.column("position"), str(self.after)))
        mask = None
        for test in tests:
            mask = test if mask is None else pc.and_(mask, test)
        return mask


def _entities(entity: str | None) -> Sequence[str] | None:
    return None if entity is None else [entity]


def _pass(path: Path, wanted: _Wanted) -> Generator[pa.RecordBatch, None, tuple[int, Position | None]]:
    """One way through what there is now; gives the sequence and the position that it ended at."""
    if not log_folder(path).is_dir():
        raise ChangelogError(
            Kind.PRECONDITION, f"there is no file log in {path}", hint="`changelog run` makes it; see [sink] path"
        )
    manifest = read_manifest(path)
    if manifest:
        for entities in [None] if wanted.entities is None else [[entity] for entity in wanted.entities]:
            yield from _archived(path, manifest, replace(wanted, entities=entities))
    live = _live(path, manifest)
    reached = wanted.after
    if wanted.after is not None:
        live = live[bisect_right(live, wanted.after, key=lambda sequence: _position(log_file(path, sequence))) :]
    rare = wanted.entities is not None and OF_CHANGELOG.issuperset(wanted.entities)
    marked = marked_sequences(path, live) if rare else live
    for sequence in live:
        if sequence not in marked:
            continue
        file = log_file(path, sequence)
        reached = _position(file)
        yield from _rows(file, wanted)
    return (live[-1] if live else 0), reached


def _live(path: Path, manifest: Manifest | None) -> list[int]:
    """The sequences to read after the archive, with none missing."""
    archived = manifest.log.last if manifest else 0
    present = sequences(path)
    refuse_holes(path, present, archived)
    return [sequence for sequence in present if sequence > archived]


def _position(file: Path) -> Position:
    try:
        position = read_checkpoint_of(file).position
    except NotWholeError as damage:
        raise damage.error(_DAMAGED) from damage
    assert position is not None
    return position


def _rows(file: Path, wanted: _Wanted) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one file; the large columns only of row groups that have one."""
    with _read_whole(file) as parquet:
        for index in range(parquet.metadata.num_row_groups):
            if not wanted.may_be_in(parquet.metadata.row_group(index)):
                continue
            if wanted.key is not None and not _found(parquet, index, wanted):
                continue
            for rows in parquet.iter_batches(batch_size=READ_ROWS, row_groups=[index], use_threads=False):
                mask = wanted.of(rows)
                kept = rows if mask is None else rows.filter(mask)
                if kept.num_rows:
                    yield of_stored(kept)


def _found(parquet: Any, index: int, wanted: _Wanted) -> bool:
    """Whether a row group has a wanted row, by the deciding columns alone."""
    batches = parquet.iter_batches(
        batch_size=READ_ROWS, row_groups=[index], columns=wanted.columns(), use_threads=False
    )
    return any(pc.any(wanted.of(rows)).as_py() for rows in batches)


@contextmanager
def _read_whole(file: Path) -> Iterator[Any]:
    """As `_opened`, for a file that must be whole."""
    try:
        with opened(file, page_checksum_verification=True, pre_buffer=False) as parquet:
            yield parquet
    except NotWholeError as damage:
        raise damage.error(_DAMAGED) from damage


def _archived(path: Path, manifest: Manifest, wanted: _Wanted) -> Iterator[pa.RecordBatch]:
    """The archive's wanted rows by position: files whose ranges overlap are read together and sorted."""
    after = str(wanted.after) if wanted.after else ""
    files = [f for f in manifest.files if (wanted.entities is None or f.entity in wanted.entities) and f.last > after]
    for group in _overlapping(sorted(files, key=lambda file: file.first)):
        batches = [rows for file in group for rows in _rows(path / file.path, wanted)]
        table = pa.Table.from_batches(batches, SCHEMA)
        table = table.sort_by([("position", "ascending"), ("partition", "ascending")])
        yield from table.combine_chunks().to_batches(max_chunksize=READ_ROWS)


def _overlapping(files: list[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Runs of files, sorted by their first position, that share positions."""
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
