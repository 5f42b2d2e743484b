"""Tests that the assembler announces each version of a table's columns once, before the first row with these columns.

If a version is incompatible with the one before it, the stream must stop.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.capture.assembly.assembled import Assembled, Listener
from changelog.connectors.capture.rows.row_change import Insert
from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.sources.postgres.decode.assembler import Assembler
from changelog.connectors.sources.postgres.decode.messages import Decoded, LogicalMessage, Relation
from changelog.envelope.columnar import batch
from changelog.envelope.entity import SCHEMAS, Entity, Evolution
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import Version, Versions
from changelog.schemas.types import Primitive, Struct
from tests.unit.postgres.messages import (
    INT,
    TEXT,
    assembler,
    delete,
    entity,
    frames,
    insert,
    relation,
    table,
    transaction,
)

WIDER = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
RETYPED = relation(columns={"id": INT, "status": INT})
BILLS = relation(30_000, "bills")
ENTITIES = [entity(), entity("bill", "bills")]
SIGNAL = LogicalMessage(transactional=True, lsn=0, prefix="changelog", content=b"0" * 32)


def wide(key: int, relid: int = 20_000) -> Insert:
    return Insert(relid=relid, new=(b"%d" % key, b"NEW", b"quick"))


def retyped(key: int) -> Insert:
    return Insert(relid=20_000, new=(b"%d" % key, b"1"))


def bill(key: int) -> Insert:
    return insert(key, relid=30_000)


def _nothing(entity: Entity, columns: Sequence[str]) -> Collection[str]:
    return ()


def versions(known: Iterable[Version] = (), **accepted: Position) -> Versions:
    return Versions(known, accepted=accepted, filled=_nothing)


def announcing(
    known: Iterable[Version] = (),
    *,
    entities: Sequence[Entity] = ENTITIES,
    published: Position | None = None,
    listener: Listener | None = None,
) -> Assembler:
    return assembler(entities, versions=versions(known), published=published, listener=listener)


def _rows(*pieces: Assembled) -> list[str]:
    """Returns the position, the entity and the key of each row, for example `100/0 order 1`.

    A version is a row of the entity `schemas`. For such a row, the text also has the number of the version, as in
    `100/0 schemas order 1`.
    """
    texts = []
    for row in table(*pieces).to_pylist():
        position = Position.parse(row["position"])
        content = f"{row['key']} {json.loads(row['current'])['version']}" if row["entity"] == SCHEMAS else row["key"]
        texts.append(f"{position.commit}/{position.ordinal} {row['entity']} {content}")
    return texts


def _versions_in(*pieces: Assembled) -> list[Version]:
    """Returns the versions among the rows. A service that starts again reads them in this form."""
    return [Version.parse(row["current"].encode()) for row in table(*pieces).to_pylist() if row["entity"] == SCHEMAS]


def _feed(sent: Sequence[Decoded], **options: object) -> Assembled:
    return announcing(**options).feed(frames(sent))  # type: ignore[arg-type]


# The position of a version


def test_a_version_comes_before_the_first_row_with_its_columns() -> None:
    assembled = _feed(
        [*transaction(100, [relation(), insert(1), insert(2)]), *transaction(200, [WIDER, wide(3), wide(4)])]
    )
    assert _rows(assembled) == [
        "100/0 schemas order 1",
        "100/0 order 1",
        "100/2 order 2",
        "200/0 schemas order 2",
        "200/0 order 3",
        "200/2 order 4",
    ]
    assert [announced.version.number for announced in assembled.announced] == [1, 2]
    assert [[change.column for change in announced.changes] for announced in assembled.announced] == [[], ["note"]]


def test_versions_and_rows_of_several_entities_are_in_the_order_of_their_positions() -> None:
    assembled = _feed(transaction(100, [relation(), insert(1), BILLS, bill(1), insert(2), bill(2)]))
    assert _rows(assembled) == [
        "100/0 schemas order 1",
        "100/0 order 1",
        "100/2 schemas bill 1",
        "100/2 bill 1",
        "100/4 order 2",
        "100/6 bill 2",
    ]


def test_a_table_without_a_change_has_no_version() -> None:
    assembled = _feed(transaction(100, [relation(), BILLS, bill(1)]))
    assert _rows(assembled) == ["100/0 schemas bill 1", "100/0 bill 1"]


def test_columns_that_no_row_had_are_not_announced() -> None:
    unused = relation(columns={"id": INT, "status": TEXT, "gone": INT})
    assembled = _feed([*transaction(100, [relation(), insert(1)]), *transaction(200, [unused, WIDER, wide(2)])])
    assert [[change.column for change in announced.changes] for announced in assembled.announced] == [[], ["note"]]


def test_columns_of_rows_that_are_not_published_are_not_announced() -> None:
    entities = [entity(immutable=True, on_change_of_immutable="ignore")]
    assembled = _feed(transaction(100, [relation(), delete(1), insert(2)]), entities=entities)
    assert _rows(assembled) == ["100/2 schemas order 1", "100/2 order 2"]


def test_batches_after_a_version_declare_its_columns() -> None:
    assembled = _feed([*transaction(100, [relation(), insert(1)]), *transaction(200, [WIDER, wide(2)])])
    shapes = [batch.shapes(rows).get("order") for rows in assembled.rows]
    columns = [None if shape is None else [name for name, _ in shape.fields] for shape in shapes]
    assert columns == [None, ["id", "status"], None, ["id", "status", "note"]]


_forms = {0: ({"id": INT, "status": TEXT}, 2), 1: ({"id": INT, "status": TEXT, "note": TEXT}, 3), 2: ({"id": INT}, 1)}
_changes = st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), max_size=8)


@settings(deadline=None)
@given(st.lists(_changes, min_size=1, max_size=5), st.integers(1, 20))
def test_every_row_follows_the_version_with_its_columns(
    transactions: Sequence[Sequence[tuple[int, bool]]], together: int
) -> None:
    sent: list[Decoded] = []
    for number, changes in enumerate(transactions, 1):
        body: list[Decoded] = []
        for form, is_bill in changes:
            columns, width = _forms[form]
            relid, name = (30_000, "bills") if is_bill else (20_000, "orders")
            body += [relation(relid, name, columns), Insert(relid=relid, new=(b"1", b"NEW", b"note")[:width])]
        sent += transaction(100 * number, body)
    reader = announcing(
        entities=[replace(one_entity, evolution=Evolution(on_incompatible="publish")) for one_entity in ENTITIES]
    )
    raw = frames(sent)
    pieces = [reader.feed(raw[at : at + together]) for at in range(0, len(raw), together)]
    columns_of: dict[str, list[str]] = {}
    numbers: dict[str, int] = {}
    last = ""
    for row in table(*pieces).to_pylist():
        assert row["position"] >= last
        last = row["position"]
        if row["entity"] == SCHEMAS:
            version = Version.parse(row["current"].encode())
            assert version.number == numbers.get(version.entity, 0) + 1
            assert columns_of.get(version.entity) != [name for name, _ in version.columns.fields]
            numbers[version.entity] = version.number
            columns_of[version.entity] = [name for name, _ in version.columns.fields]
        else:
            assert [*json.loads(row["current"])] == columns_of[row["entity"]]


# Each version once


def test_columns_are_announced_once() -> None:
    reader = announcing()
    first = reader.feed(frames(transaction(100, [relation(), insert(1)])))
    described = reader.feed(frames([*transaction(200, [relation(), insert(2)]), *transaction(300, [insert(3)])]))
    keyed = reader.feed(frames(transaction(400, [relation(identity="d"), insert(4)])))  # the columns are the same
    assert len(_versions_in(first)) == 1
    assert _rows(described, keyed) == ["200/0 order 2", "300/0 order 3", "400/0 order 4"]


def test_a_service_that_starts_again_does_not_repeat_versions() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), *transaction(200, [WIDER, wide(2)])]
    known = _versions_in(_feed(sent))
    published = Position(1, 200, 0)
    restarted = _feed([*sent, *transaction(300, [wide(3)])], known=known, published=published)
    assert _rows(restarted) == ["300/0 order 3"]
    assert restarted.announced == []
    assert _rows(_feed(transaction(300, [WIDER, wide(3)]), known=known, published=published)) == ["300/0 order 3"]


def test_rows_that_are_already_published_announce_nothing() -> None:
    """The first call of `feed` gets only published rows, which have the old columns. The assembler must not take these
    columns for a new version.
    """
    old, new = transaction(100, [relation(), insert(1)]), transaction(200, [WIDER, wide(2)])
    known = _versions_in(_feed([*old, *new]))
    reader = announcing(known, published=Position(1, 200, 0))
    assert _rows(reader.feed(frames(old))) == []
    assert _rows(reader.feed(frames([*new, *transaction(300, [wide(3)])]))) == ["300/0 order 3"]


def test_only_the_unpublished_part_of_a_transaction_announces_versions() -> None:
    sent = transaction(100, [relation(), insert(1), WIDER, wide(2), BILLS, bill(3)])
    known = [version for version in _versions_in(_feed(sent)) if version.entity == "order"]
    reader = assembler(ENTITIES, versions=versions(known), published=Position(1, 100, 2), partial=True)
    assert _rows(reader.feed(frames(sent))) == ["100/4 schemas bill 1", "100/4 bill 3"]


def test_earlier_columns_are_announced_again_when_they_come_back() -> None:
    entities = [entity(evolution=Evolution(on_incompatible="publish"))]
    sent = [
        *transaction(100, [relation(), insert(1)]),
        *transaction(200, [WIDER, wide(2)]),
        *transaction(300, [relation(), insert(3)]),
    ]
    assert [version.number for version in _versions_in(_feed(sent, entities=entities))] == [1, 2, 3]


# Tables that replace each other


def test_a_table_that_replaces_another_is_a_new_version_each_time() -> None:
    other, renamed = relation(40_000), relation(20_000, "orders_old")
    sent = [
        *transaction(100, [relation(), insert(1)]),
        *transaction(200, [other, insert(2, relid=40_000)]),
        *transaction(300, [relation(), insert(3)]),  # the first table gets its name back
        *transaction(400, [renamed, insert(4), other, insert(5, relid=40_000)]),
    ]
    assembled = _feed(sent)
    assert [version.relation for version in _versions_in(assembled)] == [20_000, 40_000, 20_000, 40_000]
    assert [version.restated for version in _versions_in(assembled)] == [(), *[("id", "status")] * 3]
    assert [row for row in _rows(assembled) if "schemas" not in row] == [
        "100/0 order 1",
        "200/0 order 2",
        "300/0 order 3",
        "400/2 order 5",
    ]


def test_batches_with_rows_of_a_table_that_came_back_declare_its_columns() -> None:
    other = replace(WIDER, relid=40_000)
    assembled = _feed(
        [
            *transaction(100, [relation(), insert(1)]),
            *transaction(200, [other, wide(2, relid=40_000)]),
            *transaction(300, [relation(), insert(3)]),
        ]
    )
    widths = [len(batch.shapes(rows)["order"].fields) for rows in assembled.rows if batch.shapes(rows)]
    assert widths == [2, 3, 2]


# Stops


def _stop_of(reader: Assembler) -> ChangelogError:
    assert reader.stop is not None
    return reader.stop


def test_a_stop_at_a_version_returns_only_the_transactions_before_it() -> None:
    reader = announcing()
    assembled = reader.feed(
        frames(
            [
                *transaction(100, [relation(), insert(1)]),
                *transaction(200, [insert(2), BILLS, bill(1), RETYPED, retyped(3), bill(2)]),
                *transaction(300, [bill(4)]),
            ]
        )
    )
    assert _rows(assembled) == ["100/0 schemas order 1", "100/0 order 1"]
    assert [announced.version.entity for announced in assembled.announced] == [
        "order"
    ]  # versions that are not published are not reported
    assert assembled.through == commit_text(101)
    assert not assembled.partial
    error = _stop_of(reader)
    assert (error.kind, error.position) == (Kind.STOP, Position(1, 200, 4))
    assert reader.feed(frames(transaction(400, [bill(5)]))).rows == []


def test_a_stop_in_the_middle_of_a_block_returns_the_transactions_before_it() -> None:
    """No table is described twice, so the rows of several transactions and tables are decoded as one block."""
    known = _versions_in(_feed(transaction(50, [replace(BILLS, columns=WIDER.columns), wide(1, relid=30_000)])))
    known += _versions_in(_feed(transaction(50, [RETYPED, retyped(1)])))
    reader = announcing(known)
    assembled = reader.feed(
        frames([*transaction(100, [BILLS, bill(1)]), *transaction(200, [bill(2), relation(), insert(3), bill(4)])])
    )
    assert _rows(assembled) == ["100/0 schemas bill 2", "100/0 bill 1"]
    assert _stop_of(reader).position == Position(1, 200, 2)


def test_an_accepted_version_is_published() -> None:
    before = transaction(100, [relation(), insert(1)])
    known, sent = _versions_in(_feed(before)), before + transaction(200, [RETYPED, retyped(2)])
    reader = assembler(ENTITIES, versions=versions(known, order=Position(1, 200, 0)), published=Position(1, 100, 0))
    assert _rows(reader.feed(frames(sent))) == ["200/0 schemas order 2", "200/0 order 2"]
    assert reader.stop is None


def test_a_failed_query_of_the_catalogue_stops_at_the_row_that_needs_it() -> None:
    """The stop must have the position of the row, even if the assembler queries the catalogue only after the row's
    transaction.
    """

    def lost(entity: Entity, columns: Sequence[str]) -> Collection[str]:
        raise ChangelogError(Kind.CONNECTION, "the connection was lost")

    reader = assembler(ENTITIES, versions=Versions([], accepted={}, filled=lost))
    assembled = reader.feed(frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [WIDER, wide(2)])]))
    assert _rows(assembled) == ["100/0 schemas order 1", "100/0 order 1"]
    assert (_stop_of(reader).kind, _stop_of(reader).position) == (Kind.CONNECTION, Position(1, 200, 0))


# Rows that are read from tables


@dataclass
class _Reads:
    """A listener that returns rows of a table at each signal: first those in `brings[0]`, and so on."""

    brings: list[pa.RecordBatch] = field(default_factory=list)
    withdrawn: int = 0

    def touched(self, rows: pa.RecordBatch, xids: npt.NDArray[np.int64]) -> None: ...

    def discard(self, table: tuple[str, str]) -> None: ...

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        return self.brings.pop(0)

    def withdraw(self) -> None:
        self.withdrawn += 1


def _read(commit: int, described: Relation, *rows: Insert) -> pa.RecordBatch:
    """Returns rows as if they had been read from a table. Their positions come after that of a signal, which is the
    first message of the transaction `commit`.
    """
    messages: list[Decoded] = [LogicalMessage(transactional=True, lsn=0, prefix="someone", content=b""), *rows]
    batch_ = table(assembler(ENTITIES).feed(frames(transaction(commit, [described, *messages])))).to_batches()[0]
    columns: Mapping[int, Primitive] = {INT: Primitive.INT, TEXT: Primitive.STRING}
    shape = Struct(fields=tuple((column.name, columns[column.type_oid]) for column in described.columns))
    return batch.with_shapes(batch_, {"order": shape}, relation=described.relid)


def test_the_columns_of_a_table_read_are_announced_at_the_position_of_its_signal() -> None:
    reads = _Reads([_read(200, WIDER, wide(1), wide(2)), _read(300, WIDER, wide(3))])
    sent = [
        *transaction(100, [relation(), insert(9), BILLS, bill(1)]),
        *transaction(200, [SIGNAL]),
        *transaction(300, [SIGNAL]),
        *transaction(400, [WIDER, wide(4)]),
    ]
    assembled = _feed(sent, listener=reads)
    assert _rows(assembled) == [
        "100/0 schemas order 1",
        "100/0 order 9",
        "100/2 schemas bill 1",
        "100/2 bill 1",
        "200/2 schemas order 2",
        "200/2 order 1",
        "200/4 order 2",
        "300/2 order 3",
        "400/0 order 4",
    ]
    assert reads.withdrawn == 0


def test_the_stream_can_return_to_the_columns_before_a_table_read() -> None:
    """A column was added before the table was read, and dropped afterwards. So only the rows that were read have this
    column. The next row of the stream has the earlier columns again.
    """
    reads = _Reads([_read(200, WIDER, wide(1))])
    sent = [
        *transaction(100, [relation(), insert(9)]),
        *transaction(200, [SIGNAL]),
        *transaction(300, [relation(), insert(2)]),
    ]
    assembled = _feed(sent, listener=reads)
    assert _rows(assembled)[-2:] == ["300/0 schemas order 3", "300/0 order 2"]
    assert [[change.kind for change in announced.changes] for announced in assembled.announced] == [
        [],
        ["added"],
        ["dropped"],
    ]


def test_a_stop_at_rows_of_a_table_returns_these_rows_to_the_table_reads() -> None:
    reads = _Reads([_read(200, RETYPED, retyped(1))])
    reader = announcing(listener=reads)
    assembled = reader.feed(
        frames(
            [*transaction(100, [relation(), insert(9)]), *transaction(200, [SIGNAL]), *transaction(300, [insert(2)])]
        )
    )
    assert _rows(assembled) == ["100/0 schemas order 1", "100/0 order 9"]
    assert reads.withdrawn == 1
    assert _stop_of(reader).position == Position(1, 200, 2)


def test_without_versions_nothing_is_announced() -> None:
    assembled = assembler(ENTITIES).feed(
        frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [RETYPED, retyped(2)])])
    )
    assert _rows(assembled) == ["100/0 order 1", "200/0 order 2"]
