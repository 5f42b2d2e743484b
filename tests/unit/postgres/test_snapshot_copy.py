"""Tests how the output of COPY becomes rows of the changelog.

`parse_copy` must find each value. The rows must equal those of `row_records`, which makes one row at a time.
"""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.capture.rows import json_columns, row_records
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.messages import Relation
from changelog.connectors.sources.postgres.snapshot import copyout
from changelog.connectors.sources.postgres.snapshot.copyout import parse_copy
from changelog.connectors.sources.postgres.snapshot.read_table import encode_copied
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.postgres.messages import TYPES, entity, relation
from tests.unit.postgres.server_texts import SERVER_TEXTS

ORIGIN = Origin(connector="postgres", name="booking", database="app")
TRANSACTION = Transaction(xid=2**33 + 5, name=str(2**33 + 5), epoch=1, commit=0x1781838, committed_at=1)
READ_AT = 1_795_230_602_886_044

_PRINTED = {b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\v": b"\\v", b"\\": b"\\\\"}

Row = Sequence[bytes | None]

awkward = st.text(st.sampled_from("\\Nntrb\b\f\n\r\t\v.x07é"), max_size=8).map(str.encode)
values = st.none() | awkward | st.binary(max_size=8).filter(lambda text: b"\0" not in text)


def printed(row: Row) -> bytes:
    """Prints a row in the text format of COPY, as the function CopyAttributeOutText in the server's copyto.c does."""
    return b"\t".join(b"\\N" if value is None else _escaped(value) for value in row) + b"\n"


def _escaped(value: bytes) -> bytes:
    return b"".join(_PRINTED.get(value[at : at + 1], value[at : at + 1]) for at in range(len(value)))


@given(st.integers(1, 4), st.data())
@settings(max_examples=200)
def test_every_printed_value_is_read_back(width: int, data_: st.DataObject) -> None:
    table = data_.draw(st.lists(st.lists(values, min_size=width, max_size=width), max_size=6))
    data = bytearray().join(map(printed, table))
    with patch.object(copyout, "_PIECE_BYTES", data_.draw(st.integers(1, 9))):  # one value may be in several pieces
        columns = parse_copy(data, width)
    assert data[-INLINE:] == bytes(INLINE)
    assert columns.starts.shape == columns.lengths.shape == columns.null.shape == (width, len(table))
    for number, row in enumerate(table):
        for place, value in enumerate(row):
            start, length = columns.starts[place, number], columns.lengths[place, number]
            assert bool(columns.null[place, number]) is (value is None)
            assert data[start : start + length] == (value or b"")


@pytest.mark.parametrize("copied", [b"1\t2\t3\n", b"1\n", b"1\t2", b"1\t2\n\n", b"1\n2\t3\t4\n", b"1\t2\n3"])
def test_rows_with_another_number_of_columns_are_malformed(copied: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        parse_copy(bytearray(copied), 2)
    assert caught.value.kind is Kind.MALFORMED


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Entity, Relation, list[Row]]:
    oids = draw(st.lists(st.sampled_from(sorted(SERVER_TEXTS)), min_size=1, max_size=6))
    names = [f"column{number}" for number in range(len(oids))]
    key = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    partition_columns = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    rest = [name for name in names if name not in key and name not in partition_columns]
    entity_ = entity(
        key=tuple(key),
        partition_by=tuple(partition_columns if draw(st.booleans()) else key),
        partitions=draw(st.sampled_from([1, 7])),
        masks=dict.fromkeys(rest[:1], draw(st.sampled_from(["drop", "null", "sha256"]))),
        exclude_columns=tuple(rest[1:2]) if draw(st.booleans()) else (),
    )
    required = [name in key or name in partition_columns for name in names]
    row = st.tuples(*(_column(oid, required=is_required) for oid, is_required in zip(oids, required, strict=True)))
    return entity_, relation(columns=dict(zip(names, oids, strict=True))), draw(st.lists(row, max_size=8))


def _column(oid: int, *, required: bool) -> st.SearchStrategy[bytes | None]:
    texts = SERVER_TEXTS[oid].map(str.encode)
    return texts if required else texts | st.none()


@given(chunks(), st.integers(0, 2**20), st.data())
@settings(max_examples=150, deadline=None)
def test_a_chunk_gives_the_same_rows_as_the_plain_path(
    chunk: tuple[Entity, Relation, list[Row]], ordinal: int, data: st.DataObject
) -> None:
    entity_, relation_, table = chunk
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"secret").bind(entity_, relation_, crossing=False)
    bound = CompiledBinding.of(binding)
    with patch.object(json_columns, "LARGE_BYTES", data.draw(st.sampled_from([20, 1 << 20]))):
        encoded = encode_copied(ORIGIN, bound, bytearray().join(map(printed, table)), read_at=READ_AT)
    last_rows = encoded.texts.other_places.tolist()
    ordered = [
        *(row for number, row in enumerate(table) if number not in last_rows),
        *(table[number] for number in last_rows),
    ]
    assert encoded.keys.to_pylist() == [row_records.place(binding, row).key for row in ordered]
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))), bool)
    published = encoded.at(Change(transaction=TRANSACTION, ordinal=ordinal, stamp=None), keep)
    published.validate(full=True)
    expected = [row for row, is_kept in zip(ordered, keep.tolist(), strict=True) if is_kept]
    read_transaction = TRANSACTION._replace(committed_at=READ_AT)
    plain = [
        row_records.read(
            ORIGIN, binding, row, Change(transaction=read_transaction, ordinal=ordinal + number, stamp=None)
        )
        for number, row in enumerate(expected, start=1)
    ]
    assert published.equals(batch.from_records(plain))
    assert batch.shapes(published) == {entity_.name: binding.shape}


def test_a_row_without_a_key_is_refused() -> None:
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    with pytest.raises(ChangelogError, match="column id"):
        encode_copied(
            ORIGIN,
            CompiledBinding.of(binding),
            bytearray(b"\\N\tNEW\n"),
            read_at=READ_AT,
        )


def test_a_row_that_is_too_large_for_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_records, "JSON_BYTES_MAX", 100)
    monkeypatch.setattr(json_columns, "LARGE_BYTES", 20)
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    encoded = encode_copied(
        ORIGIN,
        CompiledBinding.of(binding),
        bytearray(b"1\t" + b"x" * 100 + b"\n"),
        read_at=READ_AT,
    )
    with pytest.raises(
        ChangelogError, match="bytes of JSON, but a message holds 100; leave its largest column"
    ) as caught:
        encoded.at(Change(transaction=TRANSACTION, ordinal=1, stamp=None), np.ones(1, bool))
    assert caught.value.kind is Kind.LIMIT


def test_the_size_of_a_chunk_includes_its_texts() -> None:
    """The limit on memory counts the texts of a chunk, too, even before the chunk is published."""
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    copied = bytearray().join(b"%d\t%b\n" % (number, b"x" * 1000) for number in range(100))
    encoded = encode_copied(ORIGIN, CompiledBinding.of(binding), copied, read_at=READ_AT)
    assert 100_000 < encoded.nbytes < 400_000
    assert encoded.texts.current is not None
    assert encoded.texts.current.nbytes <= encoded.nbytes
