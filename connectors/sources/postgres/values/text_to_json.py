"""Converts the text that PostgreSQL prints for a value into the JSON value that we publish.

`docs/reference/types.md` has the table for users. The text is what the type's output function prints under `SETTINGS`;
pgoutput, COPY (unescaped) and a plain query all return the same text. `Codec.to_json` defines the JSON value. A codec's
`shape` only names a faster way to produce the same bytes for many values at once.
"""

import binascii
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from changelog.connectors.capture.rows.codec import Codec, Shape, plain, raw, string, timestamp, timestamptz
from changelog.connectors.sources.postgres.values import literals
from changelog.connectors.sources.postgres.values.printed import is_printed
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

SETTINGS: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO,MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",  # the shortest digits that read back as the same float
    "search_path": "pg_catalog",  # regclass and similar types then qualify every name outside pg_catalog
    "quote_all_identifiers": "off",
    "row_security": "off",  # raises an error instead of leaving rows out
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""Settings of every session that reads values. No value contains a space, so each fits `options='-c NAME=VALUE'`.

The timeouts of the role, the database or the server do not apply to these sessions. `transaction_timeout` is not
listed, because servers before 17 do not know it; `connect` turns it off.

`lc_monetary` keeps the database's own value: it decides how many digits of a stored `money` come after the point, so
another value would print another amount.
"""


def codec_for(type_: PgType, typmod: int, *, proving: bool = False) -> Codec:
    """Returns the codec for a column of this type and modifier (-1: no modifier).

    With `proving`, the codec rejects text that the type cannot print. The attributes of composites need this check: the
    text of a composite does not name its attributes, and it may have been written when the type had other attributes.
    """
    match type_:
        case PgType(kind="base", name=name):
            codec = _base(name, typmod)
            return _proving(name, codec) if proving else codec
        case PgType(kind="domain", base=PgType() as base):
            return codec_for(base, type_.typmod, proving=proving)
        case PgType(kind="array", element=PgType() as element):
            return _array(codec_for(element, typmod, proving=proving), type_.delimiter)
        case PgType(kind="composite"):
            return _composite(type_)
        case PgType(kind="range", element=PgType() as element):
            return _range(codec_for(element, -1, proving=proving))
        case PgType(kind="multirange", element=PgType() as element):
            return _multirange(codec_for(element, -1, proving=proving))
    return _TEXT


def boolean(text: bytes) -> bytes:
    """Converts `t` and `f` to true and false."""
    return b"true" if text == b"t" else b"false"


def floating(text: bytes) -> bytes:
    """Returns the server's text as a number. `NaN`, `Infinity` and `-Infinity`, which JSON lacks, become strings."""
    return plain(text) if text.endswith((b"N", b"y")) else text


def base64(text: bytes) -> bytes:
    """Converts the hexadecimal text of a bytea to base64."""
    try:
        if not text.startswith(b"\\x"):
            raise binascii.Error
        return plain(binascii.b2a_base64(binascii.a2b_hex(text[2:]), newline=False))
    except binascii.Error:
        raise ChangelogError(Kind.MALFORMED, "a bytea value is not hexadecimal text") from None


def char(text: bytes) -> bytes:
    r"""Converts a one-byte `"char"`. Bytes above 127 become octal, `\ooo`; servers before 16 print the byte itself."""
    return string(b"\\%o" % text[0] if text[:1] >= b"\x80" else text)


def hstore(text: bytes) -> bytes:
    """Converts an hstore to a JSON object of strings and nulls."""
    return _object((string(key), b"null" if value is None else string(value)) for key, value in literals.hstore(text))


def _array(element: Codec, delimiter: bytes) -> Codec:
    def to_json(text: bytes) -> bytes:
        # A JSON array cannot express explicit bounds, as in [0:2]={…}: such an array is published as text.
        return string(text) if text.startswith(b"[") else literals.array(text, delimiter, element.to_json)

    return Codec(shape=Shape.OTHER, to_json=to_json, column_type=Array(element=element.column_type))


def _composite(type_: PgType) -> Codec:
    codecs = [codec_for(attribute.type, attribute.typmod, proving=True) for attribute in type_.fields]
    names = [attribute.name for attribute in type_.fields]
    column_type = Struct(fields=tuple((name, codec.column_type) for name, codec in zip(names, codecs, strict=True)))
    if not type_.certain:
        return replace(_TEXT, column_type=column_type)
    labels = [string(name.encode()) for name in names]

    def to_json(text: bytes) -> bytes:
        values = literals.record(text)
        with contextlib.suppress(ChangelogError):  # raised if the text was written with other attributes
            if len(values) == len(labels):
                return _object(
                    (label, _nullable(codec, value)) for label, codec, value in zip(labels, codecs, values, strict=True)
                )
        return string(text)

    return Codec(shape=Shape.OTHER, to_json=to_json, column_type=column_type)


def _range(bound: Codec) -> Codec:
    def to_json(text: bytes) -> bytes:
        lower, upper, bounds = literals.range_(text)
        return b'{"lower":%b,"upper":%b,"bounds":"%b"}' % (_nullable(bound, lower), _nullable(bound, upper), bounds)

    fields = (("lower", bound.column_type), ("upper", bound.column_type), ("bounds", Primitive.STRING))
    return Codec(shape=Shape.OTHER, to_json=to_json, column_type=Struct(fields=fields))


def _multirange(range_: Codec) -> Codec:
    def to_json(text: bytes) -> bytes:
        return b"[%b]" % b",".join(map(range_.to_json, literals.multirange(text)))

    return Codec(shape=Shape.OTHER, to_json=to_json, column_type=Array(element=range_.column_type))


def _base(name: str, typmod: int) -> Codec:
    if name == "numeric":
        return Codec(shape=Shape.PLAIN, to_json=plain, column_type=_numeric(typmod))
    return _BASE.get(name, _TEXT)


def _proving(name: str, codec: Codec) -> Codec:
    def to_json(text: bytes) -> bytes:
        if not is_printed(name, text):
            raise ChangelogError(Kind.MALFORMED, f"a value is not a valid PostgreSQL {name}")
        return codec.to_json(text)

    return replace(codec, to_json=to_json)


def _numeric(typmod: int) -> ColumnType:
    """Returns a decimal for numeric(p, s) with 0 <= s <= p, otherwise text (see numerictypmodin in numeric.c)."""
    precision = (typmod - _HEADER) >> 16 & 0xFFFF
    scale = (((typmod - _HEADER) & 0x7FF) ^ 0x400) - 0x400
    if typmod < _HEADER or not 0 <= scale <= precision:
        return Primitive.STRING
    return Decimal(precision=precision, scale=scale)


def _nullable(codec: Codec, text: bytes | None) -> bytes:
    return b"null" if text is None else codec.to_json(text)


def _object(members: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % member for member in members)


_HEADER = 4  # VARHDRSZ, which the server adds to every typmod

_TEXT = Codec(shape=Shape.TEXT, to_json=string, column_type=Primitive.STRING)

# All types that are not listed are published as text.
_BASE: Mapping[str, Codec] = {
    name: Codec(shape=shape, to_json=to_json, column_type=column_type)
    for shape, to_json, column_type, names in (
        (Shape.BOOL, boolean, Primitive.BOOLEAN, "bool"),
        (Shape.RAW, raw, Primitive.INT, "int2 int4"),
        (Shape.RAW, raw, Primitive.LONG, "int8 oid"),
        (Shape.RAW, raw, Primitive.JSON, "json jsonb"),
        (Shape.FLOAT, floating, Primitive.FLOAT, "float4"),
        (Shape.FLOAT, floating, Primitive.DOUBLE, "float8"),
        (Shape.TIMESTAMP, timestamp, Primitive.TIMESTAMP, "timestamp"),
        (Shape.TIMESTAMPTZ, timestamptz, Primitive.TIMESTAMP_TZ, "timestamptz"),
        (Shape.PLAIN, plain, Primitive.DATE, "date"),
        (Shape.PLAIN, plain, Primitive.TIME, "time"),
        (Shape.PLAIN, plain, Primitive.UUID, "uuid"),
        (Shape.PLAIN, plain, Primitive.STRING, "timetz interval bit varbit inet cidr macaddr macaddr8"),
        (Shape.PLAIN, plain, Primitive.STRING, "point lseg line box path polygon circle"),
        (
            Shape.PLAIN,
            plain,
            Primitive.STRING,
            "pg_lsn pg_snapshot txid_snapshot xid xid8 cid tid int2vector oidvector",
        ),
        (Shape.OTHER, base64, Primitive.BYTES, "bytea"),
        (Shape.OTHER, char, Primitive.STRING, "char"),
        (Shape.OTHER, hstore, Map(value=Primitive.STRING), "hstore"),
    )
    for name in names.split()
}
