"""Tells MySQL from MariaDB, and reads the version of a server."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from changelog.envelope.errors import ChangelogError, Kind


class Flavour(StrEnum):
    """The kind of a server. A server that behaves like MySQL, such as Percona Server, has the flavour MYSQL."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"


_ONE_STEP = (8, 0, 30)
"""The first version of MySQL that writes XA COMMIT into the log and commits the rows in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """The version of a server. `numbers` are its three parts, and `text` is how the server prints it."""

    flavour: Flavour
    numbers: tuple[int, int, int]
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the result of `SELECT VERSION()`, for example `8.0.15` or `11.4.5-MariaDB-log`.

        Raises ChangelogError (PRECONDITION) for any other text.
        """
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        if match is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the server has the unknown version {text!r}",
                hint="the source reads MySQL from 8.0 on and MariaDB from 10.5 on",
            )
        major, minor, patch = map(int, match.groups())
        flavour = Flavour.MARIADB if "mariadb" in text.lower() else Flavour.MYSQL
        return cls(flavour=flavour, numbers=(major, minor, patch), text=text)

    @property
    def logs_xa_commits_first(self) -> bool:
        """Whether the server writes an XA COMMIT into the log before it commits the rows."""
        return self.flavour is Flavour.MARIADB or self.numbers < _ONE_STEP

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.numbers))}"
