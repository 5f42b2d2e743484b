"""Tests `Template`, which makes the JSON texts of many rows at once.

The text of each value must be the same as the text that its column's codec makes from this one value.
"""

from dataclasses import replace

import numpy as np
import pytest

from changelog.connectors.capture.rows.codec import Codec, Shape, timestamp, timestamptz
from changelog.connectors.capture.rows.json_columns import Template
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.model import Op
from changelog.schemas.types import Primitive
from tests.unit.postgres.messages import TYPES, entity, relation


def test_a_selection_of_rows_keeps_their_keys_and_states() -> None:
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    data = b"123abc" + bytes(INLINE)
    starts = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    columns = TextColumns(starts=starts, lengths=np.ones_like(starts), null=np.zeros_like(starts, bool))
    all_rows = np.ones(3, bool)
    texts = Template(binding).texts(Op.UPDATE, data, np.frombuffer(data, np.uint8), columns, columns, all_rows)
    assert texts.original is not None
    selected = texts.numbered(np.array([0, 2]))
    assert selected.places.tolist() == [0, 1]
    assert selected.keys is not None
    assert selected.keys.to_pylist() == ["1", "3"]
    assert selected.original is not None
    assert selected.current is not None
    assert selected.original.to_pylist() == selected.current.to_pylist() == texts.original.take([0, 2]).to_pylist()


TIMESTAMPS = (
    "2024-01-31 10:00:00",
    "2024-10-10 10:00:00.25",
    "2000-10-01 00:00:00.123456",
    "0000-00-00 00:00:00",
    "0000-01-01 00:00:00",
    "2024-00-10 10:00:00.5",
    "2024-10-00 10:00:00",
    "0044-03-15 00:00:00 BC",
    "10000-01-01 00:00:00",
    "infinity",
)


@pytest.mark.parametrize("zone", ["", "+00"])
def test_timestamps_equal_the_texts_of_their_codec(zone: str) -> None:
    shape, to_json = (Shape.TIMESTAMPTZ, timestamptz) if zone else (Shape.TIMESTAMP, timestamp)
    codec = Codec(shape=shape, to_json=to_json, column_type=Primitive.TIMESTAMP)
    bound = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    field = replace(bound.fields[1], codec=codec)
    binding = replace(bound, fields=(bound.fields[0], field))
    texts = [*TIMESTAMPS, *(text + zone for text in TIMESTAMPS)]
    joined = "".join(texts).encode()
    data = joined + b"7" + bytes(INLINE)
    lengths = np.array([[1] * len(texts), list(map(len, texts))], np.int32)
    starts = np.array([[len(joined)] * len(texts), np.cumsum(lengths[1]) - lengths[1]], np.int32)
    columns = TextColumns(starts=starts, lengths=lengths, null=np.zeros_like(starts, bool))
    result = Template(binding).texts(
        Op.CREATE, data, np.frombuffer(data, np.uint8), None, columns, np.ones(len(texts), bool)
    )
    assert result.current is not None
    expected = [f'{{"id":7,{field.label.decode()}{to_json(text.encode()).decode()}}}' for text in texts]
    assert result.current.to_pylist() == expected
