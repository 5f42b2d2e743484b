"""Finds the keys that are alive in the changelog, so that a repair can delete those that the tables lack.

A *fold* reads the rows of some entities and keeps only the last row of each key, by position. A key is *alive* if its
last row has a state (a `current` that is not null), and if no truncate of the entity comes after that row. A broker may
return the rows of its partitions in any order; a fold therefore compares positions and does not rely on the order in
which it reads rows.

A *ghost* is an alive key that its table may lack. A fold finds the keys of ghosts; a second reading fetches their
states, for a limited number of ghosts at a time.

**Memory is bounded.** A fold keeps the position of each key's last row, but no states. Reading a few rows of the
changelog costs almost as much as reading many. So small entities are folded together, and the number of entities in a
fold doubles while they stay small. If a fold has too many keys, its largest entity is folded later, alone. If that
entity alone has too many keys, they are split in two by their hash, and each half is split again if needed:

    entities        a b c d e f g …   ──▶  [a]   [b c]   [d e f g]   …
    d is too large  [d e f g]         ──▶  [e f g]   [d]
    still too large [d]               ──▶  [d, keys with hash % 2 = 0]   [d, keys with hash % 2 = 1]
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.envelope import key
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

Read = Callable[[Collection[str], str | None], Iterator[pa.RecordBatch]]
"""Yields all rows that the changelog has of the given entities, in any order.

If a key is given, there must be one entity, and only the rows of this key are yielded.
"""

FOLDED_MAX = 2_000_000
"""The most keys in a fold; they take about 200 MB. A fold with more keys leaves some of them to a later fold."""

GHOSTS_MAX = 100_000
"""The most ghosts in memory at once."""

GHOSTS_BYTES_MAX = 64 << 20
"""The most bytes that the ghosts in memory take, roughly."""

GROUP_MAX = 512
"""The most entities in one fold."""

_POSITION_CHARS = 34
_OPS_WITH_STATE = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])
_DEPTH_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostPortion:
    """Some ghosts, by entity. The entities in `whole` and in `cut` are finished: no later portion has ghosts of them.

    If all ghosts of a finished entity were yielded, it is in `whole`. If it has further ghosts, which only another call
    of `older_than` can find, it is in `cut`.
    """

    ghosts: Mapping[str, Sequence[Ghost]]
    whole: frozenset[str]
    cut: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The scope of one fold: some entities, or the keys of one entity whose hash modulo `modulus` is `remainder`."""

    entities: Sequence[str]
    remainder: int = 0
    modulus: int = 1


def of_keys(read: Read, entity: str, keys: Collection[str]) -> Sequence[Ghost]:
    """Returns a ghost for each of `keys` that is alive in the entity's changelog.

    Raises ChangelogError: CONNECTION if rows disappear while they are read, MALFORMED if a row has no state.
    """
    names = pa.array([entity])
    if len(keys) == 1:  # the sink may find one key without reading all rows
        fold = _fold((rows for text in (TRUNCATE_KEY, *keys) for rows in read([entity], text)), names)
    else:
        fold = _fold(_rows_of_keys(read([entity], None), pa.array(list(keys), pa.utf8())), names)
    return _read_ghosts(read, _alive_rows(fold, names), names, None).get(entity, ())


def older_than(
    read: Read,
    starts: Mapping[str, str],
    absent_keys: Mapping[str, Collection[str]],
    *,
    folded_max: int = FOLDED_MAX,
    ghosts_max: int = GHOSTS_MAX,
) -> Iterator[GhostPortion]:
    """Yields, in portions, the ghosts of each entity in `starts`.

    `starts` has, by entity, the position (as text) at which the reading of the entity's table began. A key is a ghost
    if it is alive and its last row is older than that position: the table did not have the key when the table was read.
    `absent_keys` has, by entity, keys that were looked up in the table and not found. Such a key is a ghost if it is
    alive, even if its last row is newer.

    Each entity is in `whole` or `cut` of exactly one portion, and no later portion has ghosts of that entity. Raises
    ChangelogError: CONNECTION if rows disappear while they are read, MALFORMED if a row has no state.
    """
    entities_left, group_size, parts = list(starts), 1, list[_Part]()
    while entities_left or parts:
        if not parts:
            parts.append(_Part(entities=entities_left[:group_size]))
            del entities_left[:group_size]
        part = parts.pop()
        fold = _Fold(part, folded_max)
        for rows in read(part.entities, None):
            fold.add(rows)
        ghost_keys = _ghost_rows(fold.result(), fold.names, starts, absent_keys)
        group_size = max(group_size // 2, 1) if fold.rest else min(2 * group_size, GROUP_MAX)
        parts += fold.rest
        is_single = len(fold.entities) == 1
        portion = ghost_keys.slice(0, ghosts_max if is_single or ghost_keys.num_rows <= ghosts_max else 0)
        ghosts = _read_ghosts(read, portion, fold.names, GHOSTS_BYTES_MAX)
        is_complete = sum(map(len, ghosts.values())) == ghost_keys.num_rows
        if not is_complete and not is_single:
            parts += _halves(fold.entities)
            continue
        cut = frozenset(() if is_complete else fold.entities)
        parts = [part for part in parts if cut.isdisjoint(part.entities)]
        entities_in_parts = {entity for part in parts for entity in part.entities}
        yield GhostPortion(ghosts=ghosts, whole=frozenset(fold.entities) - cut - entities_in_parts, cut=cut)


def _halves(entities: Sequence[str]) -> list[_Part]:
    middle = len(entities) // 2
    return [_Part(entities=entities[:middle]), _Part(entities=entities[middle:])]


class _Fold:
    """Finds the last row of each key of a part.

    `result` returns a table with the columns `entity` (the index of the entity in `names`), `key` and `sort_key`. The
    sort key of a row is the text `position|op|partition`. The last row of a key has the greatest sort key, because it
    has the greatest position.

    While there are more keys than `folded_max`, the fold gives up its largest entity; when only one entity is left, the
    fold gives up half of that entity's keys. `rest` has the parts that were given up, to be folded later.
    """

    def __init__(self, part: _Part, folded_max: int) -> None:
        self.entities = sorted(part.entities)
        """The entities that this fold still covers, without those that it gave up."""
        self.names = pa.array(self.entities)
        self.rest: list[_Part] = []
        self._remainder, self._modulus, self._folded_max = part.remainder, part.modulus, folded_max
        self._folded = _EMPTY
        self._added: list[pa.Table] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        sortable = self._covered(_sortable(rows, self.names))
        self._added.append(sortable)
        self._count += sortable.num_rows
        if self._count > max(self._folded_max, 2 * self._folded.num_rows):
            self._compact()

    def result(self) -> pa.Table:
        self._compact()
        return self._folded

    def _compact(self) -> None:
        self._folded, self._added, self._count = _last_rows([self._folded, *self._added]), [], 0
        while self._folded.num_rows > self._folded_max and self._modulus < 1 << _DEPTH_MAX:
            if len(self.entities) > 1:
                self._give_up_largest()
            else:
                self.rest.append(
                    _Part(entities=self.entities, remainder=self._remainder + self._modulus, modulus=2 * self._modulus)
                )
                self._modulus *= 2
            self._folded = self._covered(self._folded)

    def _give_up_largest(self) -> None:
        counts = self._folded.group_by("entity").aggregate([([], "count_all")]).sort_by("count_all")
        largest = self.names[counts.column("entity")[-1].as_py()].as_py()
        self.entities.remove(largest)
        self.rest.append(_Part(entities=[largest]))

    def _covered(self, sortable: pa.Table) -> pa.Table:
        """Returns the rows that this fold covers. A truncate belongs to every part of its entity."""
        if not sortable.num_rows:
            return sortable
        if len(self.entities) < len(self.names):
            entity_numbers = pc.index_in(pa.array(self.entities), self.names)
            sortable = sortable.filter(pc.is_in(sortable.column("entity"), entity_numbers))
        # Without rows, a column may have no chunk, and `concat_arrays` needs at least one.
        if self._modulus == 1 or not sortable.num_rows:
            return sortable
        keys = pa.concat_arrays(sortable.column("key").chunks)
        has_remainder = pa.array(key.partition_batch(keys, self._modulus) == self._remainder)
        return sortable.filter(pc.or_(has_remainder, pc.equal(keys, TRUNCATE_KEY)))


_EMPTY = pa.table(
    {"entity": pa.array([], pa.int32()), "key": pa.array([], pa.utf8()), "sort_key": pa.array([], pa.utf8())}
)


def _sortable(rows: pa.RecordBatch, names: pa.StringArray) -> pa.Table:
    """Returns the entity number, the key and the sort key of each row, as `_Fold` describes them."""
    sort_key = pc.binary_join_element_wise(
        rows.column("position"), rows.column("op"), rows.column("partition").cast(pa.utf8()), "|"
    )
    entity = pc.index_in(rows.column("entity"), names)
    return pa.table({"entity": entity, "key": rows.column("key"), "sort_key": sort_key})


def _last_rows(parts: Iterable[pa.Table]) -> pa.Table:
    """Returns, for each key, the row with the greatest sort key."""
    table = pa.concat_tables(parts).group_by(["entity", "key"]).aggregate([("sort_key", "max")])
    return table.select(["entity", "key", "sort_key_max"]).rename_columns(["entity", "key", "sort_key"])


def _fold(batches: Iterable[pa.RecordBatch], names: pa.StringArray) -> pa.Table:
    """Folds all rows at once, for few keys."""
    return _last_rows([_EMPTY, *(_sortable(rows, names) for rows in batches)])


def _rows_of_keys(batches: Iterable[pa.RecordBatch], keys: pa.StringArray) -> Iterator[pa.RecordBatch]:
    """Yields the rows of these keys, and the truncates."""
    for rows in batches:
        matches = pc.or_(pc.is_in(rows.column("key"), keys), pc.equal(rows.column("key"), TRUNCATE_KEY))
        key_rows = rows.filter(matches)
        if key_rows.num_rows:
            yield key_rows


def _alive_rows(fold: pa.Table, names: pa.StringArray) -> pa.Table:
    """Returns the rows of `fold` that have a state and come after the last truncate of their entity."""
    is_truncate = pc.equal(fold.column("key"), TRUNCATE_KEY)
    truncates = fold.filter(is_truncate)
    entity_numbers, sort_keys = (truncates.column(name).to_pylist() for name in ("entity", "sort_key"))
    truncated_at = dict(zip(entity_numbers, sort_keys, strict=True))
    truncate_keys = pa.array([truncated_at.get(entity_number, "") for entity_number in range(len(names))], pa.utf8())
    op = pc.list_element(pc.split_pattern(fold.column("sort_key"), "|"), 1)
    has_state = pc.and_(pc.is_in(op, _OPS_WITH_STATE), pc.invert(is_truncate))
    is_later = pc.greater(fold.column("sort_key"), pc.take(truncate_keys, fold.column("entity")))
    return fold.filter(pc.and_(has_state, is_later))


def _ghost_rows(
    fold: pa.Table, names: pa.StringArray, starts: Mapping[str, str], absent_keys: Mapping[str, Collection[str]]
) -> pa.Table:
    """Returns the rows of `fold` whose keys are ghosts, sorted by key; `older_than` says which keys are ghosts."""
    alive = _alive_rows(fold, names)
    entity_starts = pa.array([starts[name] for name in names.to_pylist()], pa.utf8())
    position = pc.utf8_slice_codeunits(alive.column("sort_key"), 0, _POSITION_CHARS)
    is_ghost = pc.less(position, pc.take(entity_starts, alive.column("entity")))
    for entity_number, name in enumerate(names.to_pylist()):
        if absent_keys.get(name):
            is_absent = pc.is_in(alive.column("key"), pa.array(list(absent_keys[name]), pa.utf8()))
            is_ghost = pc.or_(is_ghost, pc.and_(is_absent, pc.equal(alive.column("entity"), entity_number)))
    return alive.filter(is_ghost).sort_by("key")


def _read_ghosts(
    read: Read, folded_rows: pa.Table, names: pa.StringArray, nbytes_max: int | None
) -> dict[str, list[Ghost]]:
    """Reads the states of the keys in `folded_rows`, by entity. Stops as soon as they take more than `nbytes_max`."""
    ghosts: dict[str, list[Ghost]] = {}
    nbytes = 0
    for entity, ghost in _states(read, folded_rows, names):
        ghosts.setdefault(entity, []).append(ghost)
        nbytes += ghost.nbytes
        if nbytes_max is not None and nbytes > nbytes_max:
            break
    return ghosts


def _states(read: Read, folded_rows: pa.Table, names: pa.StringArray) -> Iterator[tuple[str, Ghost]]:
    """Reads the rows in `folded_rows` from the changelog again, because a fold keeps no states.

    Yields the entity and the ghost of each row. Rows are recognised by their entity, key and sort key.
    """
    if not folded_rows.num_rows:
        return
    last_rows = set(zip(*(column.to_pylist() for column in folded_rows.columns), strict=True))
    sort_keys = pa.concat_arrays(folded_rows.column("sort_key").chunks)
    entities = pc.take(names, pc.unique(folded_rows.column("entity"))).to_pylist()
    rows_read = set()
    for rows in read(entities, next(iter(last_rows))[1] if len(last_rows) == 1 else None):
        sortable = _sortable(rows, names)
        hits = pc.is_in(sortable.column("sort_key"), sort_keys).combine_chunks()
        for row_number in pc.indices_nonzero(hits).to_pylist():
            row = tuple(column[row_number].as_py() for column in sortable.columns)
            if row in last_rows and row not in rows_read:
                rows_read.add(row)
                yield names[row[0]].as_py(), _ghost(rows, row_number)
    for entity_number, *_ in last_rows - rows_read:
        raise ChangelogError(
            Kind.CONNECTION,
            f"rows of the entity {names[entity_number]} disappeared from the changelog during a sweep; "
            "the service sweeps again",
        )


def _ghost(rows: pa.RecordBatch, row: int) -> Ghost:
    [record] = batch.records(rows.slice(row, 1))
    envelope = record.envelope
    source = envelope.provenance.source
    if envelope.current is None:
        raise ChangelogError(
            Kind.MALFORMED, f"a row of the entity {record.entity} holds no state", position=source.position
        )
    return Ghost(
        key=record.place.key,
        partition=record.place.partition,
        position=str(source.position),
        current=envelope.current,
        unavailable=source.unavailable,
        json_null=source.json_null,
        mask=source.mask,
    )
