"""The columns of a table, as the binary log describes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table map, with everything that decides how its values are read and published.

    - `type`: the code of the log (`enum_field_types` in MySQL's `field_types.h`). Where the log has `STRING` and names
      the true type in its metadata, this is the true type: `ENUM`, `SET` or `STRING`.
    - `meta`: the column's metadata in the log, as a number; its meaning depends on `type`. For `STRING`, it is the
      length in bytes.
    - `nullable`: whether the column may hold null. `unsigned`: whether a number has no sign.
    - `collation`: the id of the collation; None for types without text. Binary strings have the collation 63.
    - `labels`: the labels of an `ENUM` or a `SET`, as bytes in the column's character set.
    - `declared`: the column's type as the catalogue prints it (`COLUMN_TYPE`), such as `uuid`, or empty if it was not
      asked. The log does not tell some types apart: in MariaDB, a `uuid` looks like a `binary(16)`, and a `json` like a
      `longtext`.
    """

    name: str
    type: int
    meta: int
    nullable: bool
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] = ()
    declared: str = ""
