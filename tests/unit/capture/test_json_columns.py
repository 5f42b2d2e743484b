"""Selecting some rows of the JSON texts that a `Template` makes."""

import numpy as np

from changelog.connectors.capture.rows.json_columns import Columns, Template
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.model import Op
from tests.unit.postgres.messages import TYPES, entity, relation


def test_a_selection_of_rows_keeps_their_keys_and_states() -> None:
    binding = Binder(resolve=TYPES.__getitem__, hmac_key=b"").bind(entity(), relation(), crossing=False)
    data = b"123abc" + bytes(INLINE)
    starts = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    columns = Columns(starts=starts, lengths=np.ones_like(starts), null=np.zeros_like(starts, bool))
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
