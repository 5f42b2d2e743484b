"""Computes the text of a message's key, and the partition of a message."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORD = 4

Hashes = npt.NDArray[np.uint32]


def key_text(texts: Sequence[str]) -> str:
    r"""Returns the text of a key. `texts` are the canonical texts of the key's columns, in the key's order.

    If the key has one column, the column's text is the key's text. The texts of several columns become a compact JSON
    array of strings, in which only `"`, `\` and control characters are escaped.
    """
    if len(texts) == 1:
        return texts[0]
    return msgspec.json.encode(texts).decode()


def partition(key: bytes, partitions: int) -> int:
    """Returns the partition, 0 to `partitions` - 1, that Kafka's Java client chooses for a partition key.

    `key` is the `key_text` of the columns in `partition_by`, in UTF-8. Source: `BuiltInPartitioner`,
    `toPositive(murmur2(key)) % partitions`.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Returns Murmur2 of `data`, an unsigned 32-bit number. Source: `org.apache.kafka.common.utils.Utils`."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for at in range(0, whole, _WORD):
        k = int.from_bytes(data[at : at + _WORD], "little") * _M & _MASK
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_batch(keys: pa.StringArray | pa.BinaryArray, partitions: int) -> npt.NDArray[np.int32]:
    """Returns the `partition` of each key in a column without nulls."""
    hashes = _murmur2_batch(keys.cast(pa.binary()))
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int32) % np.int32(partitions)


def _murmur2_batch(keys: pa.BinaryArray) -> Hashes:
    """Returns the `murmur2` of each key."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
    lengths = np.diff(ends)
    bytes_ = np.frombuffer(data or b"", np.uint8)
    hashes: Hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    _mix_words(hashes, bytes_, ends[:-1], lengths // _WORD)
    _mix_tails(hashes, bytes_, ends[:-1] + (lengths & ~3), lengths & 3)
    hashes ^= hashes >> 13
    hashes *= np.uint32(_M)
    hashes ^= hashes >> 15
    return hashes


def _mix_words(
    hashes: Hashes, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> None:
    """Mixes the whole words of all keys into the hashes. Each round takes the next word of every key that has more."""
    rows, at = np.flatnonzero(counts), 0
    if not len(rows):
        return
    words: Hashes = np.ndarray((len(data) - _WORD + 1,), "<u4", buffer=data, strides=(1,))
    while len(rows):
        k = words[starts[rows] + at * _WORD] * np.uint32(_M)
        hashes[rows] = hashes[rows] * np.uint32(_M) ^ (k ^ k >> 24) * np.uint32(_M)
        at += 1
        rows = rows[counts[rows] > at]


def _mix_tails(
    hashes: Hashes, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> None:
    for at in range(_WORD - 1):
        rows = np.flatnonzero(counts > at)
        hashes[rows] ^= data[starts[rows] + at].astype(np.uint32) << np.uint32(8 * at)
    hashes[counts > 0] *= np.uint32(_M)
