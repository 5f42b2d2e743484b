"""Chooses the partition of a key as Kafka's Java client does. The code follows the definition of MurmurHash2."""

_SEED, _FACTOR = 0x9747B28C, 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32 bits of MurmurHash2 with Kafka's seed."""
    hashed = _SEED ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        hashed = (hashed * _FACTOR & _WORD) ^ word
    if data[whole:]:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _WORD
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _WORD
    return hashed ^ hashed >> 15


def partition(key: str, partitions: int) -> int:
    """The number of the partition to which the key belongs."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
