"""Tests the fast search for transactions of the usual form: a GTID, statements with their rows, and the end. It must
find what regular expressions find.

Also tests `distinct`, which numbers the different contents among slices of bytes.
"""

import re
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.usual.distinct import distinct
from changelog.connectors.sources.mysql.decode.usual.shapes import statements, transactions

_SHAPES = (
    re.compile(rb"\x21\x02(?:\x1d?\x13[\x1e-\x20])+\x10", re.DOTALL),
    re.compile(rb"\xa2(?:\xa0?\x13[\x17-\x19])+\x10", re.DOTALL),
)
MYSQL = [b"\x21", b"\x02", b"\x1d", b"\x13", b"\x1e", b"\x1f", b"\x10", b"\x21\x02\x13\x1e\x10", b"\x04", b"\x17"]
MARIADB = [b"\xa2", b"\xa0", b"\x13", b"\x17", b"\x19", b"\x10", b"\xa2\xa0\x13\x18\x10", b"\x1e", b"\x02"]


@given(parts=st.one_of(st.lists(st.sampled_from(MYSQL), max_size=40), st.lists(st.sampled_from(MARIADB), max_size=40)))
def test_transactions_of_the_usual_form_are_found(parts: list[bytes]) -> None:
    types = b"".join(parts)
    expected = [match.span() for shape in _SHAPES for match in shape.finditer(types)]
    octets = np.frombuffer(types, np.uint8)
    firsts, nexts = transactions(octets)
    assert list(zip(firsts.tolist(), nexts.tolist(), strict=True)) == expected
    maps, begins = statements(octets, firsts, nexts)
    places = [[at for at in range(first, end) if types[at] == 0x13] for first, end in expected]
    assert maps.tolist() == [at for inside in places for at in inside]
    assert begins.tolist() == [sum(map(len, places[:number])) for number in range(len(places))]


@given(slices=st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 3)), max_size=40), random=st.randoms())
def test_equal_slices_get_the_same_number(slices: list[tuple[int, int]], random: Random) -> None:
    data = bytes(random.choice(b"ab") for _ in range(80 * 4 + 8))
    begins = np.array([4 * number + shift for number, (shift, _) in enumerate(slices)], np.int64)
    lengths = np.array([length for _, length in slices], np.int64)
    contents = [
        data[begin : begin + length] if length >= 0 else None
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    codes, examples = distinct(np.frombuffer(data, np.uint8), begins, lengths)
    assert [None if code < 0 else contents[examples[code]] for code in codes.tolist()] == contents
    assert len({contents[example] for example in examples}) == len(examples)
