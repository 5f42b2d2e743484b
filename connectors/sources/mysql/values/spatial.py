"""Converts geometries and vectors from their bytes to JSON. The bytes are the same in the log and in results of SELECT.

A geometry is published as the id of its reference system (SRID), and well-known binary (OGC 06-103r4, section 8) in
base64. See "Internal Geometry Storage Format" and "The VECTOR Type" in the MySQL manual.
"""

import base64
from typing import Final

from changelog.connectors.sources.mysql.values.malformed import malformed
from changelog.connectors.sources.mysql.values.numbers import single
from changelog.schemas.types import Array, Primitive, Struct

GEOMETRY_TYPE: Final = Struct(fields=(("srid", Primitive.LONG), ("wkb", Primitive.BYTES)))
VECTOR_TYPE: Final = Array(element=Primitive.FLOAT)

_SRID_SIZE: Final = 4
_FLOAT_SIZE: Final = 4


def geometry(raw: bytes | memoryview) -> bytes:
    """Returns the JSON object of a geometry, `{"srid":4326,"wkb":"AQEAAAA…"}`.

    The bytes are the SRID in four bytes, little-endian, and the well-known binary. If a NOT NULL column is added to a
    table, the values in existing rows have no bytes at all; such a value has SRID 0 and an empty `wkb`. Raises
    ChangelogError (MALFORMED) for one to three bytes.
    """
    if 0 < len(raw) < _SRID_SIZE:
        raise malformed("GEOMETRY", f"has {len(raw)} bytes")
    srid = int.from_bytes(raw[:_SRID_SIZE], "little")
    return b'{"srid":%d,"wkb":"%b"}' % (srid, base64.b64encode(raw[_SRID_SIZE:]))


def vector(raw: bytes | memoryview) -> bytes:
    """Returns the JSON array of a vector, whose elements are floats of 32 bits, little-endian.

    Each element is printed with the fewest digits that read back as the same value. Raises ChangelogError (MALFORMED)
    if the last element is incomplete, or if an element is not finite.
    """
    if len(raw) % _FLOAT_SIZE:
        raise malformed("VECTOR", f"has {len(raw)} bytes")
    return b"[%b]" % b",".join(single(raw[at : at + _FLOAT_SIZE]) for at in range(0, len(raw), _FLOAT_SIZE))
