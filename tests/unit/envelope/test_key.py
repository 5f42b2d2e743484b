"""Tests the hashes, partitions and texts of keys."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.key import key_text, murmur2, partition, partition_batch

# These hashes are from Kafka's own test: clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), JAVA.items())
def test_murmur2_is_that_of_the_java_client(key: str, signed: int) -> None:
    assert murmur2(key.encode()) == signed & 0xFFFFFFFF


# Kafka publishes no hashes of these texts. We computed the hashes with a small Java program, into which we copied
# `Utils.murmur2`.
@pytest.mark.parametrize(
    ("key", "signed"), [("", 275646681), ("é", 186971271), ("日本語", 1431860170), ("😀", 131881617)]
)
def test_murmur2_hashes_the_empty_text_and_non_ascii(key: str, signed: int) -> None:
    assert murmur2(key.encode()) == signed & 0xFFFFFFFF


def test_a_negative_hash_gives_a_partition_in_range() -> None:
    assert partition(b"21", 12) == (-973932308 & 0x7FFFFFFF) % 12
    assert partition(b"21", 1) == 0


@given(st.lists(st.text(max_size=20)), st.integers(1, 2**31 - 1), st.data())
def test_a_column_of_keys_has_the_partitions_of_its_single_keys(
    keys: list[str], count: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(keys)))
    expected = [partition(key.encode(), count) for key in keys[start:]]
    for type_ in (pa.utf8(), pa.large_utf8(), pa.binary()):
        column = pa.array([key.encode() for key in keys], pa.binary()).cast(type_).slice(start)
        numbers = partition_batch(column, count)
        assert numbers.dtype == np.int32
        assert numbers.tolist() == expected


def test_a_column_may_have_keys_of_all_lengths() -> None:
    keys = [bytes(range(256))[:length] for length in range(200)]
    assert partition_batch(pa.array(keys, pa.binary()), 97).tolist() == [partition(key, 97) for key in keys]


def test_a_key_of_one_column_is_its_text_and_one_of_several_is_an_array() -> None:
    assert key_text(["42"]) == "42"
    assert key_text(["é", 'a"b\\c', "\n\0", "/\x7f"]) == '["é","a\\"b\\\\c","\\n\\u0000","/\x7f"]'
    assert key_text(["a", "b"]) != key_text(["a,b"])


@given(st.lists(st.text(), min_size=2), st.lists(st.text(), min_size=2))
def test_different_keys_have_different_texts(a: list[str], b: list[str]) -> None:
    assert (key_text(a) == key_text(b)) == (a == b)
