"""Defines the value that the store keeps for a key: the row as the changelog last published it."""

import struct
from dataclasses import dataclass
from typing import Final, Self

import msgspec

_FIXED = struct.Struct(">IB34s")
_LENGTH = struct.Struct(">I")

HEADER: Final = _FIXED.size
"""The number of bytes before the JSON of a usual row (see `StoredRow`)."""

_HAS_NULLS, _INCOMPLETE = 1, 2

_names = msgspec.json.Decoder(tuple[str, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row as the changelog last published it.

    `version` is the number of the version of the row's columns (`changelog.envelope.versions`). `position` is
    the text of the row's position. `state` is the JSON of `current`. `json_null` names the columns of type json whose
    value is a JSON null, and not SQL's NULL. `complete` says that no column's value was unavailable.

    A row is *usual* if it is complete and has no JSON null.
    """

    version: int
    position: str
    state: bytes
    json_null: tuple[str, ...] = ()
    complete: bool = True

    def encode(self) -> bytes:
        """Returns the value that the store keeps.

        It is the version (4 bytes), the flags (1 byte), the position's text, and the JSON of the row. If there are JSON
        nulls, two more parts come before the row's JSON: the length of an array (4 bytes), and the JSON array itself,
        which has the names of the columns with JSON nulls.
        """
        flags = (_HAS_NULLS if self.json_null else 0) | (0 if self.complete else _INCOMPLETE)
        header = _FIXED.pack(self.version, flags, self.position.encode())
        if not self.json_null:
            return header + self.state
        names = msgspec.json.encode(self.json_null)
        return b"".join([header, _LENGTH.pack(len(names)), names, self.state])

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Returns the row from the result of `encode`."""
        version, flags, position = _FIXED.unpack_from(value)
        begin = HEADER
        json_null: tuple[str, ...] = ()
        if flags & _HAS_NULLS:
            (length,) = _LENGTH.unpack_from(value, HEADER)
            begin = HEADER + _LENGTH.size + length
            json_null = _names.decode(value[HEADER + _LENGTH.size : begin])
        return cls(
            version=version,
            position=position.decode(),
            state=value[begin:],
            json_null=json_null,
            complete=not flags & _INCOMPLETE,
        )


def usual_prefix(version: int) -> bytes:
    """Returns the first bytes of the value of a usual row of this version. The row's position and JSON follow."""
    return _FIXED.pack(version, 0, b"")[: HEADER - 34]


def position_of(value: bytes) -> bytes:
    """Returns the text of the position in the result of `StoredRow.encode`."""
    return value[HEADER - 34 : HEADER]


def row_key(entity: str, key: str) -> bytes:
    """Returns the store's key of a row: the entity's name, a zero byte, and the row's canonical key."""
    return b"%b\0%b" % (entity.encode(), key.encode())
