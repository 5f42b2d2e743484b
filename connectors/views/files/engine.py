"""Implements the engine that reads files. It makes the state of a key from the key's newest changes, and reads only as
many of them as the state needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from heapq import merge
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.views.files.archived import ArchivedRows
from changelog.connectors.views.files.contents import ChangelogFiles
from changelog.connectors.views.files.row_groups import READ_COLUMNS
from changelog.connectors.views.files.tail import ends_row, sequence_and_row
from changelog.connectors.views.served import Completeness, StateRow
from changelog.envelope.entity import RESERVED, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice
from changelog.envelope.states.fold import fold_key
from changelog.envelope.versions import Version
from changelog.schemas.types import Struct

_GAPS = ('"unavailable":', '"jsonNull":')
"""A provenance without these texts names no unavailable values and no JSON nulls."""


class FileEngine:
    """The states of the changelog in the folder `path`: a file log, or an archive. Implements `StateEngine`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[ServiceChoice, ChangelogFiles] = {}

    @property
    def where(self) -> str:
        return f"the changelog in {self._path}"

    def entities(self) -> Mapping[str, Sequence[str]]:
        try:
            contents = self._files_of(ALL_SERVICES).now()
        except ChangelogError as error:
            if error.kind is not Kind.PRECONDITION:
                raise
            return {}
        settings = contents.checkpoint.settings if contents.checkpoint else {}
        names = {*settings, *contents.archive, *contents.tail.runs} - RESERVED
        return {name: settings.get(name, {}).get("key", ()) for name in sorted(names)}

    def view(self, entity: str, services: ServiceChoice = ALL_SERVICES, /) -> "FileView":
        return FileView(self, entity, services)

    def close(self) -> None:
        """See `StateEngine`: there is nothing to end."""

    def moment(self, entity: str, services: ServiceChoice = ALL_SERVICES) -> "FileMoment":
        """Returns the rows that an entity has in the files now. Only changes that `services` includes count."""
        return FileMoment(self._files_of(services), entity)

    def _files_of(self, services: ServiceChoice) -> ChangelogFiles:
        files = self._files.get(services)
        return files or self._files.setdefault(services, ChangelogFiles(self._path, services))


class FileView:
    """The rows of one entity. Implements `ServedView`."""

    def __init__(self, engine: FileEngine, entity: str, services: ServiceChoice) -> None:
        self._engine, self._entity, self._services = engine, entity, services

    def now(self, _key: str | None = None, /, *, allows_stale: bool = False) -> "FileMoment":  # noqa: ARG002
        return self._engine.moment(self._entity, self._services)

    def at_hand(self, _key: str, /) -> None:
        return None

    def columns(self) -> Struct | None:
        version = self._engine.moment(SCHEMAS).get(self._entity)
        return None if version is None else _columns(version.current)


class FileMoment:
    """The rows of one entity at one moment. Implements `ViewMoment`.

    If the job `archive` replaces files while the rows are read, the remaining rows are those of a later moment.
    """

    def __init__(self, files: ChangelogFiles, entity: str) -> None:
        self._files, self._entity, self._contents = files, entity, files.now()
        self.reached: Completeness = self._contents.reached(entity)

    def get(self, key: str, /) -> StateRow | None:
        while True:
            try:
                return self._folded(key)
            except ChangelogError:
                self._move_on()

    def rows(self, begin: str, /) -> Iterator[tuple[str, StateRow | None]]:
        last: str | None = None
        while True:
            try:
                for key in self._keys_from(begin if last is None else last):
                    if key != last and key != TRUNCATE_KEY:
                        yield key, self.get(key)
                    last = key
            except ChangelogError:
                self._move_on()
            else:
                return

    def _move_on(self) -> None:
        """Moves to the present moment if the archive replaced files; otherwise, raises the caller's error again."""
        if self._files.manifest_number() == self._contents.number:
            raise  # noqa: PLE0704 - the caller handles an error
        self._contents = self._files.now()

    def _folded(self, key: str) -> StateRow | None:
        if key == TRUNCATE_KEY:
            return None
        newest_place = next(self._contents.tail.of(self._entity).places_of(key), None)
        if newest_place is not None and ends_row(newest_place):
            return None
        changes = self._changes(key)
        newest = next(changes, None)
        if newest is None or newest.op == Op.DELETE:
            return None
        is_whole = newest.gaps is None and newest.current is not None
        state = None if is_whole else fold_key(change.folding() for change in chain([newest], changes))
        return StateRow(
            key=key,
            current=(newest.current or "").encode() if state is None else _object(state.values),
            unavailable=() if state is None else tuple(sorted(state.missing)),
            position=Position.parse(newest.position),
            committed_at=newest.committed_at,
        )

    def _keys_from(self, begin: str) -> Iterator[str]:
        """Yields keys from `begin` on in ascending order, each once: all that have rows, and some that have none."""
        tail = self._contents.tail
        in_tail = tail.of(self._entity).keys_from(begin)
        in_archive = iter(()) if self._entity in tail.truncates else self._archived().keys_from(begin)
        return (key for key, _ in groupby(merge(in_tail, in_archive)))

    def _changes(self, key: str) -> Iterator["_Change"]:
        """Yields the changes of a key since the last truncate, the newest first."""
        tail = self._contents.tail
        for place in tail.of(self._entity).places_of(key):
            yield self._at(place)
        if self._entity in tail.truncates:
            return
        truncated = self._truncated()
        pending: list[_Change] = []
        for batches, end in self._archived().batches_of(key):
            changes = chain.from_iterable(map(_changes_in, batches))
            pending += (change for change in changes if change.position > truncated and self._includes(change))
            pending.sort(key=_position)
            while pending and pending[-1].position > end:
                yield pending.pop()
        yield from reversed(pending)

    def _at(self, place: int) -> "_Change":
        """Returns the change at a place of the tail."""
        sequence, row = sequence_and_row(place)
        file = log_file(self._files.path, sequence)
        footer = self._contents.groups.footer(file)
        group = 0
        while row >= footer.row_group(group).num_rows:
            row -= footer.row_group(group).num_rows
            group += 1
        return next(_changes_in(self._contents.groups.read(file, group).slice(row, 1)))

    def _archived(self) -> ArchivedRows:
        contents = self._contents
        files = contents.archive.get(self._entity, ())
        return ArchivedRows(path=self._files.path, files=files, groups=contents.groups)

    def _truncated(self) -> str:
        """Returns the position of the last truncate in the archive; an empty text if there is none."""
        batches = (batch for batches, _ in self._archived().batches_of(TRUNCATE_KEY) for batch in batches)
        changes = (change for batch in batches for change in _changes_in(batch) if self._includes(change))
        return max((change.position for change in changes), default="")

    def _includes(self, change: "_Change") -> bool:
        return self._files.services.includes(change.service)


class _Change(NamedTuple):
    """One change: the values of the columns `READ_COLUMNS`, without the key."""

    position: str
    op: str
    committed_at: datetime
    provenance: str
    service: str
    current: str | None

    @property
    def gaps(self) -> str | None:
        return self.provenance if any(text in self.provenance for text in _GAPS) else None

    def folding(self) -> tuple[str, str, str | None, str | None]:
        return self.position, self.op, self.current, self.gaps


def _changes_in(rows: pa.RecordBatch) -> Iterator[_Change]:
    columns = (rows.column(name).to_pylist() for name in READ_COLUMNS[1:])
    return map(_Change._make, zip(*columns, strict=True))


def _position(change: _Change) -> str:
    return change.position


def _object(values: Mapping[str, bytes]) -> bytes:
    """Returns a JSON object with these members, whose values are JSON."""
    return b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(name), value) for name, value in values.items())


@lru_cache(maxsize=256)
def _columns(version: bytes) -> Struct:
    return Version.parse(version).columns
