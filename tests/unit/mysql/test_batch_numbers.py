"""Tests how a whole column of floats is printed at once. This must give the same texts as printing single floats."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.batches.batch_numbers import floating
from changelog.connectors.sources.mysql.values.batches.raw_columns import PADDING_BYTES, RawColumn
from changelog.connectors.sources.mysql.values.numbers import double, single

ONE_BY_ONE = {4: single, 8: double}
FORMATS = {4: "<f", 8: "<d"}

decimals = st.builds(
    lambda digits, exponent: float(f"{digits}e{exponent}"), st.integers(0, 10**17), st.integers(-25, 5)
)
"""Numbers with up to 17 digits. Some are so small or so large that they are printed with an exponent."""


@pytest.mark.parametrize("size", [4, 8])
@given(numbers=st.lists(decimals, min_size=1, max_size=40))
@example(numbers=[0.0, 0.0001, 999_999.0, 1e6, 9_999_999_999.5, 1e10, 123_456_789_012_345.6, 1e15])
def test_a_column_of_floats_is_printed_like_single_floats(size: int, numbers: list[float]) -> None:
    stored = [struct.pack(FORMATS[size], number) for number in numbers]
    column = RawColumn(
        octets=np.frombuffer(b"".join(stored) + bytes(PADDING_BYTES), np.uint8),
        starts=np.arange(len(stored), dtype=np.int64) * size,
        lengths=np.full(len(stored), size, np.int64),
    )
    printed = floating(size)(column)
    assert printed.data is not None
    assert printed.unprintable is not None
    for place, raw in enumerate(stored):
        if not printed.unprintable[place]:
            begin, length = printed.starts[place], printed.lengths[place]
            assert printed.data[begin : begin + length] == ONE_BY_ONE[size](raw)
