"""What the changelog holds alive of an entity, by its own rows: where a repair looks for what the table lacks.

The changelog is folded key by key, the last row by position counting; reading order does not matter, since a broker
gives its partitions in any. A large one is folded in parts by a hash of the key, so that memory is bounded.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from connectors.capture.tables.key_lookup import Ghost
from envelope import key
from envelope.columnar import batch
from envelope.entity import TRUNCATE_KEY
from envelope.errors import ChangelogError, Kind
from envelope.model import Op

Read = Callable[[str, str | None], Iterator[pa.RecordBatch]]
"""Gives all rows of an entity that the changelog holds now, or those of one of its keys."""

FOLDED_MAX = 2_000_000
"""Keys that are folded at once: some 200 MB."""

GHOSTS_MAX = 100_000
"""Ghosts that are held at once."""

GHOSTS_BYTES_MAX = 64 << 20
"""What held ghosts hold, roughly."""

_POSITION_CHARS = 34
_ALIVE = pa.array([Op.CREATE.value, Op.UPDATE.value, Op.READ.value])
_DEPTH_MAX = 24


def of_keys(read: Read, entity: str, keys: Collection[str]) -> list[Ghost]:
    """Those of the keys that the changelog holds alive."""
    if len(keys) == 1:  # a store may find one key without reading all
        found = _last(rows for each in (TRUNCATE_KEY, *keys) for rows in read(entity, each))
    else:
        found = _last(_only(read(entity, None), pa.array(list(keys), pa.utf8())))
    return list(_ghosts(read, entity, _alive(found)))


def older_than(
    read: Read, entity: str, start: str, *, folded_max: int = FOLDED_MAX, ghosts_max: int = GHOSTS_MAX
) -> Iterator[tuple[list[Ghost], bool]]:
    """What is alive by a row before the position `start`, in parts; with each, whether it has more than is given."""
    parts = [(0, 1)]
    while parts:
        number, of = parts.pop()
        fold = _Fold(number, of, folded_max)
        for rows in read(entity, None):
            fold.add(rows)
        alive = _alive(fold.result())
        parts += fold.rest
        older = alive.filter(pc.less(pc.utf8_slice_codeunits(alive.column("stamp"), 0, _POSITION_CHARS), start))
        older = older.sort_by("key")
        found: list[Ghost] = []
        room = GHOSTS_BYTES_MAX
        for ghost in _ghosts(read, entity, older.slice(0, ghosts_max)):
            found.append(ghost)
            room -= ghost.nbytes
            if room < 0:
                break
        yield found, len(found) < older.num_rows


class _Fold:
    """The last row of each key whose hash is `number` modulo `of`, as `key` and `stamp`.

    A stamp is the row's position, its op and its partition, `|` between them: the greatest one is the last row's.
    Where there are more keys than `most`, half of them are left to the parts in `rest`.
    """

    def __init__(self, number: int, of: int, most: int) -> None:
        self.rest: list[tuple[int, int]] = []
        self._number, self._of, self._most = number, of, most
        self._folded = _EMPTY
        self._added: list[pa.Table] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        stamped = _stamped(rows)
        if self._of > 1:
            stamped = self._mine(stamped)
        self._added.append(stamped)
        self._count += stamped.num_rows
        if self._count > max(self._most, 2 * self._folded.num_rows):
            self._compact()

    def result(self) -> pa.Table:
        self._compact()
        return self._folded

    def _compact(self) -> None:
        self._folded, self._added, self._count = _greatest([self._folded, *self._added]), [], 0
        while self._folded.num_rows > self._most and self._of < 1 << _DEPTH_MAX:
            self.rest.append((self._number + self._of, 2 * self._of))
            self._of *= 2
            self._folded = self._mine(self._folded)

    def _mine(self, stamped: pa.Table) -> pa.Table:
        """A truncate is of every part."""
        keys = stamped.column("key").combine_chunks()
        if not len(keys):
            return stamped
        keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
        mine = pa.array(key.partitions(keys, self._of) == self._number)
        return stamped.filter(pc.or_(mine, pc.equal(keys, TRUNCATE_KEY)))


_EMPTY = pa.table({"key": pa.array([], pa.utf8()), "stamp": pa.array([], pa.utf8())})


def _stamped(rows: pa.RecordBatch) -> pa.Table:
    stamp = pc.binary_join_element_wise(
        rows.column("position"), rows.column("op"), rows.column("partition").cast(pa.utf8()), "|"
    )
    return pa.table({"key": rows.column("key"), "stamp": stamp})


def _greatest(parts: Iterable[pa.Table]) -> pa.Table:
    folded = pa.concat_tables(parts).group_by("key").aggregate([("stamp", "max")])
    return folded.select(["key", "stamp_max"]).rename_columns(["key", "stamp"])


def _last(found: Iterable[pa.RecordBatch]) -> pa.Table:
    return _greatest([_EMPTY, *map(_stamped, found)])


def _only(found: Iterable[pa.RecordBatch], keys: pa.StringArray) -> Iterator[pa.RecordBatch]:
    """The rows of these keys, and the truncates."""
    for rows in found:
        wanted = pc.or_(pc.is_in(rows.column("key"), keys), pc.equal(rows.column("key"), TRUNCATE_KEY))
        kept = rows.filter(wanted)
        if kept.num_rows:
            yield kept


def _alive(folded: pa.Table) -> pa.Table:
    """The keys whose last row leaves a state, behind the last truncate."""
    is_truncate = pc.equal(folded.column("key"), TRUNCATE_KEY)
    truncated = pc.max(folded.filter(is_truncate).column("stamp")).as_py() or ""
    op = pc.list_element(pc.split_pattern(folded.column("stamp"), "|"), 1)
    alive = pc.and_(pc.is_in(op, _ALIVE), pc.invert(is_truncate))
    return folded.filter(pc.and_(alive, pc.greater(folded.column("stamp"), truncated)))


def _ghosts(read: Read, entity: str, alive: pa.Table) -> Iterator[Ghost]:
    """The states of these keys, by another look at the changelog: a fold keeps none. Rows are found by their stamps."""
    if not alive.num_rows:
        return
    wanted = dict(zip(alive.column("key").to_pylist(), alive.column("stamp").to_pylist(), strict=True))
    keys = alive.column("key").combine_chunks()
    found = read(entity, next(iter(wanted)) if len(wanted) == 1 else None)
    given = set()
    for rows in found:
        stamped = _stamped(rows)
        hits = pc.is_in(stamped.column("key"), keys).combine_chunks()
        for row in pc.indices_nonzero(hits).to_pylist():
            name = stamped.column("key")[row].as_py()
            if stamped.column("stamp")[row].as_py() == wanted[name] and name not in given:
                given.add(name)
                yield _ghost(rows, row)
    if len(given) != len(wanted):
        raise ChangelogError(
            Kind.CONNECTION, f"rows of {entity} went away from the changelog while it was read; it is read again"
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
