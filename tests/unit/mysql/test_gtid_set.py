"""Tests MySQL's sets of GTIDs. They must behave like plain sets of pairs (a source and a number). Also tests how they
are encoded as texts and bytes.
"""

import struct
from random import Random
from typing import Literal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.positions.gtid_encoding import decode_gtids, encode_gtids
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet, parse_gtid
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from changelog.envelope.errors import ChangelogError, Kind

UUIDS = [f"{digit * 8}-71ca-11e1-9e33-c80aa9429562" for digit in "a1f"]
SOURCES = [*UUIDS, f"{UUIDS[0]}:orders", f"{UUIDS[0]}:_2", f"{UUIDS[1]}:{'x' * 32}"]
EMPTY = GtidSet(intervals={})
BIG = 9223372036854775806

Pairs = set[tuple[str, int]]
PAIRS = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 12) | st.integers(BIG - 3, BIG)), max_size=40)


def made(pairs: Pairs) -> GtidSet:
    """Builds a set by adding one GTID after the other, in any order."""
    builder = EMPTY.builder()
    for source, number in pairs:
        builder.add(f"{source}:{number}")
    return builder.build()


@given(PAIRS, PAIRS)
def test_sets_of_gtids_behave_like_sets_of_pairs(mine: Pairs, theirs: Pairs) -> None:
    one, other = made(mine), made(theirs)
    assert (one == other) == (mine == theirs)
    assert one.minus(other) == other.missing(one) == made(mine - theirs)
    assert one.is_subset(other) == (mine <= theirs)
    assert bool(one) == bool(mine)
    assert {pair for pair in mine | theirs if one.contains("{}:{}".format(*pair))} == mine


@given(PAIRS, st.sampled_from(SOURCES), st.lists(st.integers(1, 12)))
def test_adding_many_gtids_of_a_source_equals_adding_them_one_by_one(
    pairs: Pairs, source: str, numbers: list[int]
) -> None:
    before, many, single = made(pairs), made(pairs).builder(), made(pairs).builder()
    many.add_all(f"{source}:", np.array(numbers, np.int64))
    for number in numbers:
        single.add(f"{source}:{number}")
    assert many.build() == single.build()
    if numbers:
        assert before.contains_any(f"{source}:", np.array(numbers)) == any(
            before.contains(f"{source}:{n}") for n in numbers
        )


@given(PAIRS)
def test_a_set_is_read_back_from_its_text_and_from_its_bytes(pairs: Pairs) -> None:
    gtids = made(pairs)
    assert GtidSet.parse(gtids.text) == gtids
    assert parse_gtids(Flavour.MYSQL, gtids.text) == gtids
    assert decode_gtids(encode_gtids(gtids)) == decode_gtids(memoryview(encode_gtids(gtids))) == gtids


@given(PAIRS, st.randoms(use_true_random=False))
def test_a_text_in_another_order_and_with_repeated_gtids_gives_the_same_set(pairs: Pairs, random: Random) -> None:
    items = [f"{source}:{number}" for source, number in pairs] * 2
    random.shuffle(items)
    text = " ,\n".join(item.upper() if random.random() < 0.5 else item.replace(":", " : ") for item in items)
    assert GtidSet.parse(f" {text} ") == made(pairs)


def test_a_set_prints_like_the_server() -> None:
    text = f"{UUIDS[1]}:1-3:5:{'x' * 32}:7,{UUIDS[0]}:_2:4-5:orders:9"
    assert GtidSet.parse(text).text == text
    assert EMPTY.text == ""


def test_a_builder_leaves_the_set_that_it_began_with_unchanged() -> None:
    start = GtidSet.parse(f"{UUIDS[0]}:1-3")
    builder = start.builder()
    builder.add(f"{UUIDS[0]}:4")
    first = builder.build()
    builder.add(f"{UUIDS[0]}:6")
    assert [value.text for value in (start, first, builder.build())] == [
        f"{UUIDS[0]}:{intervals}" for intervals in ("1-3", "1-4", "1-4:6")
    ]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("x", 0),
        (UUIDS[0], 36),
        (f"{UUIDS[0]}:orders", 36),
        (f"{UUIDS[0]}:1-3:orders", 40),
        (f"{UUIDS[0]}:orders:other:1", 36),
        (f"{UUIDS[0]}:0", 37),
        (f"{UUIDS[0]}:3-2", 37),
        (f"{UUIDS[0]}:1-{BIG + 1}", 37),
        (f"{UUIDS[0]}:1;", 38),
        (f"{UUIDS[0]}:1,{UUIDS[0]}", 75),
        (f"{UUIDS[0]}:1,,", 39),
        (f"{UUIDS[0]}:{'x' * 33}:1", 36),
        (f"{UUIDS[0]}:٣", 36),
    ],
)
def test_texts_that_are_no_sets_are_malformed(text: str, offset: int) -> None:
    with pytest.raises(ChangelogError, match=rf"at character {offset}$") as raised:
        GtidSet.parse(text)
    assert raised.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("text", ["", UUIDS[0], f"{UUIDS[0]}:0", f"{UUIDS[0]}:{BIG + 1}", f"{UUIDS[0]}:1-2", "0-1-100"])
def test_texts_that_are_no_gtids_are_malformed(text: str) -> None:
    with pytest.raises(ChangelogError, match="is not a MySQL GTID") as raised:
        parse_gtid(text)
    assert raised.value.kind is Kind.MALFORMED


def test_a_set_without_tags_has_the_bytes_that_mysql_8_0_reads() -> None:
    data = struct.pack("<Q16sQQQ", 1, UUID(UUIDS[0]).bytes, 1, 1, 6)
    assert encode_gtids(GtidSet.parse(f"{UUIDS[0]}:1-5")) == data


RECORDED = (
    "0104000000000001"
    "1111111171ca11e19e33c80aa9429562045f78010000000000000009000000000000000a00000000000000"
    "aaaaaaaa71ca11e19e33c80aa942956200010000000000000005000000000000000700000000000000"
    "aaaaaaaa71ca11e19e33c80aa942956206615f62010000000000000002000000000000000300000000000000"
    "aaaaaaaa71ca11e19e33c80aa94295620c6f7264657273020000000000000001000000000000000200000000000000"
    "03000000000000000400000000000000"
)  # fmt: skip
"""The content of a PREVIOUS_GTIDS event that MySQL 9.7 wrote, in hexadecimal."""


def test_a_set_with_tags_has_the_bytes_that_mysql_9_7_wrote() -> None:
    text = f"{UUIDS[1]}:_x:9,{UUIDS[0]}:5-6:a_b:2:orders:1:3"
    assert decode_gtids(bytes.fromhex(RECORDED)).text == text
    assert encode_gtids(GtidSet.parse(text)).hex() == RECORDED


@given(PAIRS, st.randoms(use_true_random=False))
def test_mutated_bytes_give_another_set_or_are_malformed(pairs: Pairs, random: Random) -> None:
    data = bytearray(encode_gtids(made(pairs)))
    for _ in range(random.randrange(1, 4)):
        data[random.randrange(len(data))] = random.choice([0, 1, 2, 127, 128, 255, random.randrange(256)])
    changed = bytes(data[: random.choice([len(data), random.randrange(len(data))])])
    gtids = decoded(changed)
    assert gtids is Kind.MALFORMED or GtidSet.parse(gtids.text) == decode_gtids(encode_gtids(gtids)) == gtids


def decoded(data: bytes) -> GtidSet | Literal[Kind.MALFORMED]:
    """Returns the set that these bytes encode. If they are malformed, returns the kind of the error."""
    try:
        return decode_gtids(data)
    except ChangelogError as error:
        if error.kind is Kind.MALFORMED:
            return Kind.MALFORMED
        raise


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (bytes([0, 0, 0, 0, 0, 0, 0, 2]), 0),
        (bytes([0, 0, 0, 0, 0, 0, 0, 1]), 0),
        (struct.pack("<Q", 1), 8),
        (struct.pack("<Q", 0) + b"x", 8),
        (struct.pack("<Q16sQ", 1, b"", 1), 32),
        (struct.pack("<Q16sQQQ", 1, b"", 1, 0, 2), 32),
        (struct.pack("<Q16sQQQ", 1, b"", 1, 2, 2), 40),
        (struct.pack("<Q16sQQQ", 1, b"", 1, 2, 1 << 63), 40),
        (struct.pack("<Q16sQ16sQ", 2, b"", 0, b"", 0), 32),
        (bytes([1, 1, 0, 0, 0, 0, 0, 1]) + bytes(16) + b"\x05ab" + bytes(8), 24),
        (bytes([1, 1, 0, 0, 0, 0, 0, 1]) + bytes(16) + b"\x04Ab" + bytes(8), 24),
    ],
)
def test_bytes_that_encode_no_set_are_malformed(data: bytes, offset: int) -> None:
    with pytest.raises(ChangelogError, match=rf"at byte {offset}$") as raised:
        decode_gtids(data)
    assert raised.value.kind is Kind.MALFORMED
