"""Tests how geometries and vectors are converted to JSON."""

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.spatial import geometry, vector
from changelog.envelope.errors import ChangelogError, Kind

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20)


@given(st.integers(0, (1 << 32) - 1), st.binary())
def test_a_geometry_becomes_its_srid_and_its_wkb(srid: int, wkb: bytes) -> None:
    value = json.loads(geometry(memoryview(struct.pack("<I", srid) + wkb)))
    assert list(value) == ["srid", "wkb"]
    assert (value["srid"], base64.b64decode(value["wkb"], validate=True)) == (srid, wkb)


def test_a_geometry_without_bytes_has_no_wkb() -> None:
    assert geometry(b"") == b'{"srid":0,"wkb":""}'


@given(FLOATS)
def test_a_vector_is_read_back_with_the_same_bits(numbers: list[float]) -> None:
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    assert struct.pack(f"<{len(numbers)}f", *json.loads(vector(memoryview(raw)), parse_int=float)) == raw


def test_the_numbers_of_a_vector_have_as_few_digits_as_possible() -> None:
    assert vector(struct.pack("<5f", 0.1, 2, -1.5, -0.0, 3e38)) == b"[0.1,2,-1.5,-0,3e+38]"


@pytest.mark.parametrize("raw", [b"1", b"12", b"123"])
def test_a_geometry_without_a_whole_srid_is_malformed(raw: bytes) -> None:
    with pytest.raises(ChangelogError, match=r"GEOMETRY has . bytes") as raised:
        geometry(raw)
    assert raised.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("raw", [b"12345", struct.pack("<f", float("inf")), struct.pack("<f", float("nan"))])
def test_vectors_that_no_server_writes_are_malformed(raw: bytes) -> None:
    with pytest.raises(ChangelogError, match="a value of type") as raised:
        vector(raw)
    assert raised.value.kind is Kind.MALFORMED
