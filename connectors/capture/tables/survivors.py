"""Finds the keys that are alive in the changelog, so that a repair can delete those that the tables lack.

The changelog is folded key by key. A key is alive if its last row, by position, leaves a state, and if that row stands
after the entity's last truncate. The order in which rows are read does not matter, because a broker gives its
partitions in any order.

**Memory is bounded.** A fold keeps a position for each key, and no states. Reading a few rows of the store costs almost
as much as reading many, so small entities are folded together. A large one is folded in parts by a hash of its key:

    entities   a b c d e f g …   ──▶  [a]  [b c]  [d e f g]  …    twice as many each time, while they stay small
    too large  d                 ──▶  split by key hash:  d/2·0  d/2·1  each split in two again if needed

A *ghost* is an alive key that its table may lack. A second reading fetches the states of ghosts alone, a limited number
at a time.
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
"""Reads from the changelog all rows of the given entities; with a key, only that key's rows of the one entity."""

FOLDED_MAX = 2_000_000
"""The most keys in memory during one fold: about 200 MB."""

GHOSTS_MAX = 100_000
"""Ghosts that are held at once."""

GHOSTS_BYTES_MAX = 64 << 20
"""The most bytes that the ghosts in memory take, roughly."""

GROUP_MAX = 512
"""The most entities in one fold. The first is folded alone, then twice as many each time while they are small."""

_POSITION_CHARS = 34
_ALIVE = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])
_DEPTH_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The `ghosts` that one reading gave, by entity.

    For entities in `whole`, these are the last ghosts; entities in `cut` have more, which are not given.
    """

    ghosts: Mapping[str, Sequence[Ghost]]
    whole: frozenset[str]
    cut: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one fold covers: some entities, or the keys of one entity whose hash is `remainder` modulo `modulus`."""

    entities: Sequence[str]
    remainder: int = 0
    modulus: int = 1


def of_keys(read: Read, entity: str, keys: Collection[str]) -> Sequence[Ghost]:
    """Reads the states of those of the entity's `keys` that are alive in the changelog."""
    names = pa.array([entity])
    if len(keys) == 1:  # a store may find one key without reading all
        fold = _last((rows for text in (TRUNCATE_KEY, *keys) for rows in read([entity], text)), names)
    else:
        fold = _last(_rows_of_keys(read([entity], None), pa.array(list(keys), pa.utf8())), names)
    return _read_ghosts(read, _alive(fold, names), names, None).get(entity, ())


def older_than(
    read: Read,
    starts: Mapping[str, str],
    absent_keys: Mapping[str, Collection[str]],
    *,
    folded_max: int = FOLDED_MAX,
    ghosts_max: int = GHOSTS_MAX,
) -> Iterator[Survivors]:
    """Yields, in portions, each entity's alive keys whose last row is before the entity's position in `starts`.

    Keys in `absent_keys`, by entity, are included at any position if they are alive: a lookup did not find them.

    Each entity is once `whole` or `cut`, and no ghost of it is given after that.
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
        ghost_keys = _older(fold.result(), fold.names, starts, absent_keys)
        group_size = max(group_size // 2, 1) if fold.rest else min(2 * group_size, GROUP_MAX)
        parts += fold.rest
        is_single = len(fold.entities) == 1
        portion = ghost_keys.slice(0, ghosts_max if is_single or ghost_keys.num_rows <= ghosts_max else 0)
        ghosts = _read_ghosts(read, portion, fold.names, GHOSTS_BYTES_MAX)
        all_given = sum(map(len, ghosts.values())) == ghost_keys.num_rows
        if not all_given and not is_single:
            parts += _halves(fold.entities)
            continue
        cut = frozenset(() if all_given else fold.entities)
        parts = [part for part in parts if cut.isdisjoint(part.entities)]
        entities_in_parts = {entity for part in parts for entity in part.entities}
        yield Survivors(ghosts=ghosts, whole=frozenset(fold.entities) - cut - entities_in_parts, cut=cut)


def _halves(entities: Sequence[str]) -> list[_Part]:
    middle = len(entities) // 2
    return [_Part(entities=entities[:middle]), _Part(entities=entities[middle:])]


class _Fold:
    """The last row of each key of a part, as `entity` (its place in `names`), `key` and `stamp`.

    A stamp is the row's position, its op and its partition, `|` between them: the greatest one is the last row's.
    If there are more keys than `folded_max`, the fold gives up its largest entity, repeatedly; when one entity is left,
    it gives up half of that entity's keys, repeatedly. `rest` has what was given up, as parts to be folded later.
    """

    def __init__(self, part: _Part, folded_max: int) -> None:
        self.entities = sorted(part.entities)
        """The entities that this fold still covers; those moved to `rest` are removed."""
        self.names = pa.array(self.entities)
        self.rest: list[_Part] = []
        self._remainder, self._modulus, self._folded_max = part.remainder, part.modulus, folded_max
        self._folded = _EMPTY
        self._added: list[pa.Table] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        stamped = self._mine(_stamped(rows, self.names))
        self._added.append(stamped)
        self._count += stamped.num_rows
        if self._count > max(self._folded_max, 2 * self._folded.num_rows):
            self._compact()

    def result(self) -> pa.Table:
        self._compact()
        return self._folded

    def _compact(self) -> None:
        self._folded, self._added, self._count = _greatest([self._folded, *self._added]), [], 0
        while self._folded.num_rows > self._folded_max and self._modulus < 1 << _DEPTH_MAX:
            if len(self.entities) > 1:
                self._leave_largest()
            else:
                self.rest.append(
                    _Part(entities=self.entities, remainder=self._remainder + self._modulus, modulus=2 * self._modulus)
                )
                self._modulus *= 2
            self._folded = self._mine(self._folded)

    def _leave_largest(self) -> None:
        counts = self._folded.group_by("entity").aggregate([([], "count_all")]).sort_by("count_all")
        largest = self.names[counts.column("entity")[-1].as_py()].as_py()
        self.entities.remove(largest)
        self.rest.append(_Part(entities=[largest]))

    def _mine(self, stamped: pa.Table) -> pa.Table:
        """The rows that belong to this fold. A truncate belongs to every part of its entity."""
        if not stamped.num_rows:
            return stamped
        if len(self.entities) < len(self.names):
            places = pc.index_in(pa.array(self.entities), self.names)
            stamped = stamped.filter(pc.is_in(stamped.column("entity"), places))
        if self._modulus == 1 or not stamped.num_rows:  # without rows a column may have no chunk, and one is needed
            return stamped
        keys = pa.concat_arrays(stamped.column("key").chunks)
        in_partition = pa.array(key.partitions(keys, self._modulus) == self._remainder)
        return stamped.filter(pc.or_(in_partition, pc.equal(keys, TRUNCATE_KEY)))


_EMPTY = pa.table(
    {"entity": pa.array([], pa.int32()), "key": pa.array([], pa.utf8()), "stamp": pa.array([], pa.utf8())}
)


def _stamped(rows: pa.RecordBatch, names: pa.StringArray) -> pa.Table:
    stamp = pc.binary_join_element_wise(
        rows.column("position"), rows.column("op"), rows.column("partition").cast(pa.utf8()), "|"
    )
    return pa.table({"entity": pc.index_in(rows.column("entity"), names), "key": rows.column("key"), "stamp": stamp})


def _greatest(parts: Iterable[pa.Table]) -> pa.Table:
    table = pa.concat_tables(parts).group_by(["entity", "key"]).aggregate([("stamp", "max")])
    return table.select(["entity", "key", "stamp_max"]).rename_columns(["entity", "key", "stamp"])


def _last(batches: Iterable[pa.RecordBatch], names: pa.StringArray) -> pa.Table:
    return _greatest([_EMPTY, *(_stamped(rows, names) for rows in batches)])


def _rows_of_keys(batches: Iterable[pa.RecordBatch], keys: pa.StringArray) -> Iterator[pa.RecordBatch]:
    """The rows of these keys, and the truncates."""
    for rows in batches:
        matches = pc.or_(pc.is_in(rows.column("key"), keys), pc.equal(rows.column("key"), TRUNCATE_KEY))
        key_rows = rows.filter(matches)
        if key_rows.num_rows:
            yield key_rows


def _alive(fold: pa.Table, names: pa.StringArray) -> pa.Table:
    """The keys whose last row leaves a state, after the last truncate of their entity."""
    is_truncate = pc.equal(fold.column("key"), TRUNCATE_KEY)
    truncates = fold.filter(is_truncate)
    truncated_at = dict(zip(truncates.column("entity").to_pylist(), truncates.column("stamp").to_pylist(), strict=True))
    truncate_stamps = pa.array([truncated_at.get(entity_number, "") for entity_number in range(len(names))], pa.utf8())
    op = pc.list_element(pc.split_pattern(fold.column("stamp"), "|"), 1)
    alive = pc.and_(pc.is_in(op, _ALIVE), pc.invert(is_truncate))
    is_later = pc.greater(fold.column("stamp"), pc.take(truncate_stamps, fold.column("entity")))
    return fold.filter(pc.and_(alive, is_later))


def _older(
    fold: pa.Table, names: pa.StringArray, starts: Mapping[str, str], absent_keys: Mapping[str, Collection[str]]
) -> pa.Table:
    """The alive keys whose last row is before the start of their entity, and those in `absent_keys`."""
    alive = _alive(fold, names)
    entity_starts = pa.array([starts[name] for name in names.to_pylist()], pa.utf8())
    position = pc.utf8_slice_codeunits(alive.column("stamp"), 0, _POSITION_CHARS)
    is_ghost = pc.less(position, pc.take(entity_starts, alive.column("entity")))
    for entity_number, name in enumerate(names.to_pylist()):
        if absent_keys.get(name):
            is_absent = pc.is_in(alive.column("key"), pa.array(list(absent_keys[name]), pa.utf8()))
            is_ghost = pc.or_(is_ghost, pc.and_(is_absent, pc.equal(alive.column("entity"), entity_number)))
    return alive.filter(is_ghost).sort_by("key")


def _read_ghosts(read: Read, alive: pa.Table, names: pa.StringArray, nbytes_max: int | None) -> dict[str, list[Ghost]]:
    """The states of these keys by entity; if they take more than `nbytes_max`, only some of them."""
    ghosts: dict[str, list[Ghost]] = {}
    nbytes = 0
    for entity, ghost in _ghosts(read, alive, names):
        ghosts.setdefault(entity, []).append(ghost)
        nbytes += ghost.nbytes
        if nbytes_max is not None and nbytes > nbytes_max:
            break
    return ghosts


def _ghosts(read: Read, alive: pa.Table, names: pa.StringArray) -> Iterator[tuple[str, Ghost]]:
    """Reads the states of `alive` keys from the changelog, because a fold keeps none; rows are matched by stamp."""
    if not alive.num_rows:
        return
    ghost_rows = set(zip(*(column.to_pylist() for column in alive.columns), strict=True))
    stamps = pa.concat_arrays(alive.column("stamp").chunks)
    entities = pc.take(names, pc.unique(alive.column("entity"))).to_pylist()
    rows_read = set()
    for rows in read(entities, next(iter(ghost_rows))[1] if len(ghost_rows) == 1 else None):
        stamped = _stamped(rows, names)
        hits = pc.is_in(stamped.column("stamp"), stamps).combine_chunks()
        for row_number in pc.indices_nonzero(hits).to_pylist():
            row = tuple(column[row_number].as_py() for column in stamped.columns)
            if row in ghost_rows and row not in rows_read:
                rows_read.add(row)
                yield names[row[0]].as_py(), _ghost(rows, row_number)
    for entity_number, *_ in ghost_rows - rows_read:
        raise ChangelogError(
            Kind.CONNECTION,
            f"rows of {names[entity_number]} went away from the changelog while it was read; it is read again",
        )


def _ghost(rows: pa.RecordBatch, row: int) -> Ghost:
    [record] = batch.records(rows.slice(row, 1))
    envelope = record.envelope
    source = envelope.provenance.source
    if envelope.current is None:
        raise ChangelogError(Kind.MALFORMED, f"a row of {record.entity} holds no state", position=source.position)
    return Ghost(
        key=record.place.key,
        partition=record.place.partition,
        position=str(source.position),
        current=envelope.current,
        unavailable=source.unavailable,
        json_null=source.json_null,
        mask=source.mask,
    )
