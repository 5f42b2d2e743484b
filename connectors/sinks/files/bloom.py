"""Tests values with the Bloom filters of Parquet files. pyarrow writes such filters, but cannot read them.

A Bloom filter is a bit set for one column of a row group. It shows either that a value is certainly not there, or that
the value may be there. Parquet's filter is a row of blocks of 32 bytes. The upper half of a value's hash (XXH64)
chooses a block, and the lower half chooses one bit in each of the block's eight words. So a test reads the filter's
header and one block. Specification: https://github.com/apache/parquet-format/blob/master/BloomFilter.md
"""

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

_HEADER = re.compile(rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])" + 3 * rb"\x1c\x1c\x00\x00" + rb"\x00", re.DOTALL)
"""The header in Thrift's compact encoding: the number of bytes of the bit set, then the only algorithm, hash and
compression that Parquet knows."""

_HEADER_BYTES_MAX = 18
_BLOCK_BYTES = 32
_BLOCK = struct.Struct("<8I")
_SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
"""A hash is multiplied by these numbers to choose the bit in each word of a block."""


class BloomFilters:
    """The Bloom filters of one open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def may_hold(self, column: Any, value: str) -> bool:
        """Returns False if `value` is certainly not in a column of a row group.

        `column` is the column's pyarrow metadata. The result is True if the column has no filter, or one of a kind
        that this module does not know.
        """
        offset = column.bloom_filter_offset
        if offset is None:
            return True
        header = _HEADER.match(os.pread(self._descriptor, _HEADER_BYTES_MAX, offset))
        blocks = _size(header[1]) // _BLOCK_BYTES if header else 0
        if header is None or not blocks:
            return True
        hash_ = _hash(value)
        start = offset + header.end() + _BLOCK_BYTES * ((hash_ >> 32) * blocks >> 32)
        block = os.pread(self._descriptor, _BLOCK_BYTES, start)
        return len(block) < _BLOCK_BYTES or all(
            word >> (((hash_ & _LOW) * salt & _LOW) >> 27) & 1
            for word, salt in zip(_BLOCK.unpack(block), _SALT, strict=True)
        )


@contextmanager
def bloom_filters(file: Path) -> Iterator[BloomFilters]:
    """Opens the Bloom filters of a Parquet file."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield BloomFilters(descriptor)
    finally:
        os.close(descriptor)


def _size(varint: bytes) -> int:
    """Returns the number in a varint of Thrift's compact encoding; 0 if it is negative (the varint is odd)."""
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))
    return 0 if number & 1 else number >> 1


# XXH64 with the seed 0, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md

_LOW = (1 << 32) - 1
_ALL = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_STRIPE = struct.Struct("<4Q")


@lru_cache(maxsize=8)
def _hash(value: str) -> int:
    data = value.encode()
    total, rest = _stripes(data)
    total = total + len(data) & _ALL
    while len(data) - rest >= 8:
        total = _rotated(total ^ _round(0, int.from_bytes(data[rest : rest + 8], "little")), 27) * _P1 + _P4 & _ALL
        rest += 8
    if len(data) - rest >= 4:
        total = _rotated(total ^ int.from_bytes(data[rest : rest + 4], "little") * _P1 & _ALL, 23) * _P2 + _P3 & _ALL
        rest += 4
    for byte in data[rest:]:
        total = _rotated(total ^ byte * _P5 & _ALL, 11) * _P1 & _ALL
    total = (total ^ total >> 33) * _P2 & _ALL
    total = (total ^ total >> 29) * _P3 & _ALL
    return total ^ total >> 32


def _stripes(data: bytes) -> tuple[int, int]:
    """Hashes all complete stripes of 32 bytes. Returns the hash so far, and where the rest of the data begins."""
    if len(data) < _STRIPE.size:
        return _P5, 0
    lanes = [_P1 + _P2 & _ALL, _P2, 0, -_P1 & _ALL]
    rest = len(data) // _STRIPE.size * _STRIPE.size
    for words in _STRIPE.iter_unpack(memoryview(data)[:rest]):
        lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
    total = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
    for lane in lanes:
        total = (total ^ _round(0, lane)) * _P1 + _P4 & _ALL
    return total, rest


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2 & _ALL, 31) * _P1 & _ALL


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _ALL
