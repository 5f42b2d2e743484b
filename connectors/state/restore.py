"""Fills an empty store from the changelog, or brings an older store forward to the changelog's end."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks import Log
from changelog.connectors.state.changes import Changes, StateStore
from changelog.connectors.state.columns import UNKNOWN, ColumnVersions, PlacedVersion
from changelog.connectors.state.fill_row import Row, fill, known
from changelog.connectors.state.fill_rows import may_lack
from changelog.connectors.state.stored_row import StoredRow, position_of, row_key, usual_prefix
from changelog.envelope.entity import GAPS, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.gap import Gap
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.envelope.versions import Version

WRITE_ROWS: Final = 20_000
WRITE_BYTES: Final = 32 << 20
"""One write to the store has about this many rows, or this many bytes, at most."""

_NOTHING = b""
"""The state of a marker. Until the end of the restore, a marker stands for a row that moved to another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What is to be read from the changelog.

    `masks` maps each entity whose rows are kept to the id of its masks. `after` is the position up to which the store
    has the changelog; it is an empty text if the store is empty. `progress` is called for each batch that was read,
    with the number of its rows. `stopping` says whether the service is to end.
    """

    masks: Mapping[str, str]
    after: str
    progress: Callable[[int], None]
    stopping: Callable[[], bool]


def restore(store: StateStore, log: Log, read_plan: ReadPlan) -> dict[str, bytes]:
    """Brings the store to the end of the changelog. Returns the facts that hold the versions of the entities' columns.

    The caller writes these facts together with the store's new position. If the process ends before that, the next
    process may repeat the whole restore. Raises the ChangelogError of the reader or the store, or CONNECTION if the
    service is to stop.
    """
    restoring = _Restoring(store, read_plan)
    restoring.learn(log)
    for rows in _rows(log, read_plan, restoring.columns):
        if read_plan.stopping():
            raise ChangelogError(Kind.CONNECTION, "the service stops while its state is being restored")
        restoring.take(rows)
        read_plan.progress(rows.num_rows)
    restoring.end()
    return dict(restoring.columns.fact(entity) for entity in read_plan.masks if restoring.columns.number(entity))


def _rows(log: Log, read_plan: ReadPlan, columns: ColumnVersions) -> Iterator[pa.RecordBatch]:
    if read_plan.after:
        return log.read(after=Position.parse(read_plan.after))
    entities = [entity for entity in read_plan.masks if columns.number(entity) != UNKNOWN]
    return log.read_together(entities) if entities else iter(())


@dataclass(slots=True)
class _Restoring:
    """Takes the changelog's rows in any order, as long as the rows of each partition are in order.

    A row is left out if the store has a newer row of its key, or if it has other masks than the entity has now. It is
    also left out if it is older than its entity's entry in `_floors`: the position of the last gap, truncate, or change
    of settings. When a row moves to another partition, older rows from the partition that it left may be read after the
    move. So a marker with the position of the move stays under the row's old key until the end. `_untidy` says that
    there are markers, or rows from before a truncate, that `end` must delete.
    """

    _store: StateStore
    _read_plan: ReadPlan
    columns: ColumnVersions = field(default_factory=ColumnVersions)
    _floors: dict[str, str] = field(default_factory=dict)
    _newest: dict[str, str] = field(default_factory=dict)
    _changes: Changes = field(default_factory=Changes)
    _nbytes: int = 0
    _untidy: bool = False

    def learn(self, log: Log) -> None:
        """Reads the versions of columns, and the gaps. Both decide whether rows can be used."""
        versions, gaps = (
            sorted(
                (position, state)
                for rows in log.read(entity=entity)
                for position, state in zip(
                    rows.column("position").to_pylist(), rows.column("current").to_pylist(), strict=True
                )
            )
            for entity in (SCHEMAS, GAPS)
        )
        for position, state in versions:
            version = Version.parse(state.encode())
            if self.columns.add(PlacedVersion(position=position, version=version)):
                self._raise_floor(version.entity, position)
        for position, state in gaps:
            for entity in Gap.parse(state.encode()).entities:
                self._raise_floor(entity, position)
        for entity, floor in self._floors.items():
            if floor > self._read_plan.after and entity in self._read_plan.masks:
                self._changes.forget(entity)

    def take(self, rows: pa.RecordBatch) -> None:
        """Puts the rows into the store."""
        entities = rows.column("entity").dictionary_encode()
        codes = entities.indices.to_numpy()
        for code, entity in enumerate(entities.dictionary.to_pylist()):
            if entity in self._read_plan.masks:
                alone = len(entities.dictionary) == 1
                self._take(entity, rows if alone else rows.take(pa.array(np.flatnonzero(codes == code))))

    def end(self) -> None:
        """Writes the last rows, and deletes the markers and the rows that a truncate deleted."""
        self._write()
        if not self._untidy:
            return
        for key, value in self._store.scan():
            entity = key.partition(b"\0")[0].decode()
            row = StoredRow.decode(value)
            if row.state == _NOTHING or row.position < self._floors.get(entity, ""):
                self._changes.rows[key] = None
            if len(self._changes.rows) >= WRITE_ROWS:
                self._write()
        self._write()

    def _take(self, entity: str, rows: pa.RecordBatch) -> None:
        provenances = rows.column("provenance")
        lacking = may_lack(provenances).tolist()
        keys = [row_key(entity, key) for key in rows.column("key").to_pylist()]
        positions: list[str] = rows.column("position").to_pylist()
        in_order = min(positions) > self._newest.get(entity, self._read_plan.after)
        self._newest[entity] = max(self._newest.get(entity, ""), *positions)
        keys_to_fetch = {key for key, is_lacking in zip(keys, lacking, strict=True) if is_lacking or not in_order}
        old_rows = self._stored(keys_to_fetch)
        states = rows.column("current").cast(pa.binary()).to_pylist()
        moved = rows.column("moved").to_pylist()
        alike = self._masked_alike(entity, provenances)
        truncate = row_key(entity, TRUNCATE_KEY)
        for number, (key, position, state) in enumerate(zip(keys, positions, states, strict=True)):
            if key == truncate:
                self._raise_floor(entity, position)
                self._untidy = True
                continue
            before = self._changes.rows.get(key, old_rows.get(key))
            is_newer = before is None or position_of(before).decode() < position
            if not is_newer or position < self._floors.get(entity, "") or not alike[number]:
                continue
            if state is None and "movedTo" in (moved[number] or ""):
                self._untidy = True
                self._put(key, StoredRow(version=UNKNOWN, position=position, state=_NOTHING).encode())
            else:
                provenance = provenances[number].as_py() if lacking[number] else None
                self._put(key, self._value(entity, position, state, provenance, before))

    def _value(
        self, entity: str, position: str, state: bytes | None, provenance: str | None, before: bytes | None
    ) -> bytes | None:
        """Returns the store's value of a row, None for a delete. `provenance` is None if the row has all values."""
        if state is None:
            return None
        version = self.columns.number_at(entity, position)
        if provenance is None:
            return usual_prefix(version) + position.encode() + state
        values = None
        if before is not None:
            earlier = StoredRow.decode(before)
            if earlier.state != _NOTHING:
                values = known(earlier, self.columns.usable(entity, earlier.version))
        row = Row(op=Op.READ, provenance=provenance, current=state, original=None)
        filled_row = fill(row, values, self.columns.names(entity))
        return StoredRow(
            version=version,
            position=position,
            state=filled_row.row.current or _NOTHING,
            json_null=filled_row.json_null,
            complete=filled_row.complete,
        ).encode()

    def _masked_alike(self, entity: str, provenances: pa.StringArray) -> Sequence[bool]:
        """Returns which rows have the entity's present masks. Older rows may have other masks, or masks with another
        secret.
        """
        mask = self._read_plan.masks[entity]
        if not mask:
            return [True] * len(provenances)
        alike: list[bool] = pc.ends_with(provenances, f',"mask":"{mask}"}}}}').to_pylist()
        return alike

    def _stored(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        missing = sorted(key for key in keys if key not in self._changes.rows)
        return dict(zip(missing, self._store.get(missing), strict=True)) if missing else {}

    def _raise_floor(self, entity: str, position: str) -> None:
        self._floors[entity] = max(position, self._floors.get(entity, ""))

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._changes.rows[key] = value
        self._nbytes += len(key) + len(value or b"")
        if len(self._changes.rows) >= WRITE_ROWS or self._nbytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._store.write(self._changes, bulk=True)
        self._changes, self._nbytes = Changes(), 0
