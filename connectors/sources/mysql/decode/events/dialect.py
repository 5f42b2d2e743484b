"""Finds out which optional fields a server writes into its table maps, the events that describe tables."""

import re
from typing import NamedTuple, Self

_YEAR_WITHOUT_SIGN = (8, 0, 20)
_YEAR_WITH_SIGN = (8, 0, 24)


class Dialect(NamedTuple):
    """Says for which types of columns a server's table maps contain certain optional fields.

    - `geometry_has_collation`: a `GEOMETRY` column has a collation. This is true only for MariaDB.
    - `year_has_sign`: for a `YEAR` column, as for a column of numbers, the table map says whether it is unsigned. This
      is true for MariaDB and for MySQL from 8.0.24 on, and false for MySQL up to 8.0.20. It is None (unknown) for the
      versions between them.
    """

    geometry_has_collation: bool
    year_has_sign: bool | None

    @classmethod
    def of(cls, server_version: str) -> Self:
        """Returns the dialect of the server that wrote a format description with this version."""
        if "mariadb" in server_version.lower():
            return cls(geometry_has_collation=True, year_has_sign=True)
        return cls(geometry_has_collation=False, year_has_sign=_year_has_sign(server_version))


def _year_has_sign(server_version: str) -> bool | None:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", server_version)
    if match is None:
        return None
    version = tuple(map(int, match.groups()))
    if version <= _YEAR_WITHOUT_SIGN:
        return False
    return True if version >= _YEAR_WITH_SIGN else None
