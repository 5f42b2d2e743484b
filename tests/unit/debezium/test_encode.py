"""Tests the encoding of several rows together. The result must be the same as if each row were encoded alone."""

import zlib
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from changelog.connectors.capture.assembly.assembled import EncodedRows
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.codec import Codec, Shape, raw, string
from changelog.connectors.capture.rows.published_fields import published_fields
from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update, Value
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.capture.rows.spans import Span
from changelog.connectors.sources.debezium.decode import encode
from changelog.connectors.sources.debezium.decode.encode import PublishedRow, RowEncoder
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Stamp
from changelog.schemas.types import Array, ColumnType, Decimal, Primitive

COLUMNS: dict[str, ColumnType] = {
    "id": Primitive.INT,
    "code": Primitive.STRING,
    "price": Decimal(precision=6, scale=2),
    "weight": Primitive.DOUBLE,
    "doc": Primitive.JSON,
    "tags": Array(element=Primitive.STRING),
    "done": Primitive.BOOLEAN,
    "at": Primitive.TIMESTAMP_TZ,
}
STAMP = Stamp(api_version="v1", service_name="till", identifier="7")
ORIGINS = [
    Origin(connector="postgresql", name="shop", database="one"),
    Origin(connector="mysql", name="shop", database="two"),
]


def entity(name: str, key: tuple[str, ...], **settings: Any) -> Entity:
    return Entity(
        name=name,
        table=("shop", name),
        key=key,
        partition_by=settings.pop("partition_by", key),
        partitions=3,
        masks=settings.pop("masks", {}),
        default_stamp=Stamp(api_version="", service_name="nobody", identifier=""),
        **settings,
    )


def bind(of: Entity, *, unlogged: tuple[str, ...] = ()) -> Binding:
    names, types = [*COLUMNS], [*COLUMNS.values()]
    fields = published_fields(
        of, of.name, names, lambda i: Codec(shape=Shape.RAW, to_json=raw, column_type=types[i]), b"secret"
    )
    return Binding(
        entity=of,
        table=f"shop.{of.name}",
        relid=1,
        width=len(names),
        fields=fields.fields,
        key=fields.key,
        partition=fields.partition,
        identity=frozenset(),
        full=False,
        lost=fields.lost,
        unlogged=unlogged,
        whole_rows="",
        crossing=False,
        leaves=frozenset(),
        mask="mask" if of.masks else None,
    )


ENTITIES = [
    entity("order", ("id",)),
    entity("guest", ("code", "id"), partition_by=("code",), missing_stamp="warn"),
    entity("price", ("price", "weight"), masks={"code": "sha256", "price": "sha256", "at": "null"}),
    entity("event", ("tags",), columns=("tags", "doc"), on_truncate="publish"),
    entity("moment", ("at",), exclude_columns=("doc",)),
]


def text(random: Random) -> bytes:
    return string(random.choice(["", "plain", 'a "quoted" one', "línea\n", "x" * 300]).encode())


def row(random: Random, key: int, *, nulls: bool = True) -> tuple[Value, ...]:
    values: list[Value] = [
        b"%d" % key,
        text(random) if random.random() < 0.2 else b'"k%d"' % key,
        b'"%d.50"' % key,
        random.choice([b"1.5", b'"NaN"', b"-0", b"1e-07"]),
        random.choice([b"null", b'{"a": 1}', b"[1, null]", b'"x"']),
        random.choice([b"[]", b'["a","\\u0041"]']),
        random.choice([b"true", b"false"]),
        b'"2026-11-21T03:10:02.%06dZ"' % key,
    ]
    if nulls:
        for place in range(1, len(values)):
            if random.random() < 0.05:
                values[place] = None if random.random() < 0.7 else UNCHANGED
    return tuple(values)


def change(random: Random, op: Op) -> Insert | Update | Delete | None:
    key = random.randrange(50)
    moved = key + (random.random() < 0.1)
    if op in (Op.CREATE, Op.READ):
        return Insert(relid=1, new=row(random, key, nulls=op is Op.CREATE))
    if op is Op.UPDATE:
        has_old = random.random() < 0.7
        old = row(random, moved) if has_old else None
        return Update(relid=1, old_kind="O" if has_old else None, old=old, new=row(random, key))
    whole = random.random() < 0.7
    old = row(random, key, nulls=False)
    return Delete(relid=1, old_kind="O" if whole else "K", old=old if whole else (old[0], *(None,) * 7))


def rows(random: Random, count: int, bindings: Sequence[Binding]) -> list[PublishedRow]:
    ops = [Op.CREATE, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.READ]
    result = []
    for _ in range(count):
        binding, op = random.choice(bindings), random.choice(ops)
        if random.random() < 0.01 and binding.entity.on_truncate == "publish":
            op = Op.TRUNCATE
        result.append(
            PublishedRow(random.choice(ORIGINS), binding, op, None if op is Op.TRUNCATE else change(random, op))
        )
    return result


def spans(random: Random, count: int) -> list[Span]:
    result, commit = [], 100
    while count:
        commit += 5
        size = min(count, random.randint(1, 30))
        transaction = Transaction(xid=commit, name=str(commit), epoch=1, commit=commit, committed_at=commit * 7)
        published = 2 * size // 3 if random.random() < 0.1 else -1
        stamp = random.choice([None, STAMP])
        result.append(Span(transaction=transaction, stamp=stamp, ordinal=0, rows=size, published=published))
        count -= size
    return result


def outcome(rows_: Sequence[PublishedRow], spans_: Sequence[Span], *, few: int) -> EncodedRows | str:
    try:
        with patch.object(encode, "FEW_ROWS", few):
            return RowEncoder().encode(rows_, spans_)
    except ChangelogError as error:
        return error.message


@pytest.mark.parametrize("seed", range(25))
def test_rows_that_are_encoded_together_equal_rows_that_are_encoded_alone(seed: int) -> None:
    random = Random(seed)
    chosen = random.sample(ENTITIES, random.randint(1, len(ENTITIES)))
    rows_ = rows(random, 600, [bind(of) for of in chosen])
    usable = [of for of in rows_ if is_publishable(of)][: random.choice([1, 40, 600])]
    spans_ = spans(random, len(usable))
    together, single = outcome(usable, spans_, few=0), outcome(usable, spans_, few=1 << 40)
    assert isinstance(together, EncodedRows)
    assert isinstance(single, EncodedRows)
    assert together.rows.to_pylist() == single.rows.to_pylist()
    assert together.rows.schema.equals(single.rows.schema, check_metadata=True)
    assert together.commits.tolist() == single.commits.tolist()
    assert together.xids.tolist() == single.xids.tolist()
    assert together.unstamped == single.unstamped
    assert together.stop is single.stop is None


def is_publishable(of: PublishedRow) -> bool:
    """Returns whether the row can be published. It cannot if, for example, its key is not known."""
    transaction = Transaction(xid=1, name="1", epoch=1, commit=1, committed_at=1)
    span = Span(transaction=transaction, stamp=None, ordinal=0, rows=1)
    try:
        return RowEncoder().encode([of], [span]).stop is None
    except ChangelogError:
        return False


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_encoded_together_stop_at_the_same_row(seed: int) -> None:
    random = Random(seed)
    stopping = [
        entity("order", ("id",), immutable=True),
        entity("guest", ("id",), missing_stamp="stop"),
        entity("gone", ("missing",)),
    ]
    bindings = [bind(random.choice(stopping)), bind(entity("other", ("id",)), unlogged=("code",))]
    rows_ = rows(random, 200, bindings)
    spans_ = spans(random, len(rows_))
    together, single = outcome(rows_, spans_, few=0), outcome(rows_, spans_, few=1 << 40)
    assert isinstance(together, EncodedRows)
    assert isinstance(single, EncodedRows)
    assert together.stop is not None
    assert single.stop is not None
    assert (together.stop.message, together.stop.position) == (single.stop.message, single.stop.position)
    assert single.stop.position is not None
    before = [index for index, commit in enumerate(single.commits) if commit < single.stop.position.commit]
    assert together.rows.slice(0, len(before)).to_pylist() == single.rows.slice(0, len(before)).to_pylist()


def test_most_rows_are_encoded_together() -> None:
    random = Random(zlib.crc32(b"together"))
    binding = bind(ENTITIES[0])
    origin = ORIGINS[0]
    usual = [
        PublishedRow(origin, binding, Op.UPDATE, Update(relid=1, old_kind="O", old=of, new=of))
        for of in (replace_doc(row(random, key, nulls=False)) for key in range(100))
    ]
    with patch("changelog.connectors.capture.rows.row_records.records", side_effect=AssertionError):
        assert RowEncoder().encode(usual, spans(random, 100)).rows.num_rows > 0


def replace_doc(of: tuple[Value, ...]) -> tuple[Value, ...]:
    return (*of[:4], b"{}", *of[5:])
