"""Defines the columns of a table, as the binary log describes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumn:
    """One column, as a table map (the log's description of a table) describes it.

    The members are everything that decides how the column's values are read and published:

    - `type`: the code of the log (`type_codes.TypeCode`). If the log has `STRING`, the metadata says whether the
      column is an `ENUM`, a `SET` or really a `STRING`, and `type` is that type.
    - `meta`: the column's metadata in the log, as a number; if there are two bytes, they are little-endian. The meaning
      depends on `type`:
      - `STRING`: the length in bytes. `VARCHAR`: the maximum length in bytes.
      - `FLOAT`, `DOUBLE`, `ENUM`, `SET`: the size of a value in bytes.
      - `TIME2`, `DATETIME2`, `TIMESTAMP2`: the number of digits of the fraction.
      - `BLOB`, `JSON`, `GEOMETRY`, `VECTOR`: the size, in bytes, of the length that the log writes before each value.
      - `NEWDECIMAL` and `BIT`: see the properties. All other types: 0.
    - `nullable`: whether the column may hold null. `unsigned`: whether a number has no sign.
    - `collation`: the id of the collation; None for types without text. Binary strings have the collation 63.
    - `labels`: the labels of an `ENUM` or a `SET`, as bytes in the column's character set.
    - `declared`: the column's type as the catalogue prints it (`COLUMN_TYPE`), such as `uuid`, or empty if the
      catalogue was not queried. The log does not tell some types apart: in MariaDB, a `uuid` looks like a `binary(16)`,
      and a `json` like a `longtext`.
    """

    name: str
    type: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] = ()
    declared: str = ""

    @property
    def precision(self) -> int:
        """The number of digits of a `NEWDECIMAL`; the log has it in the first byte of the metadata."""
        return self.meta & 0xFF

    @property
    def scale(self) -> int:
        """The number of digits after the point of a `NEWDECIMAL`; the log has it in the second byte."""
        return self.meta >> 8

    @property
    def bits(self) -> int:
        """The number of bits of a `BIT`. The second byte of the metadata is the number of whole bytes, and the first is
        the number of bits left over.
        """
        return (self.meta >> 8) * 8 + (self.meta & 0xFF)
