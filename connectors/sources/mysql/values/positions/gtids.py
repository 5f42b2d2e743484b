"""Defines one interface for the sets of global transaction ids (GTIDs) of MySQL and of MariaDB.

The implementations are `GtidSet` for MySQL and `GtidPosition` for MariaDB. A GTID is a text, as the server prints it.
"""

from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet

Ints = npt.NDArray[np.int64]

G_co = TypeVar("G_co", covariant=True)


class GtidsBuilder(Protocol[G_co]):
    """Collects the GTIDs of a stream, in the order of the stream."""

    def add(self, gtid: str) -> None:
        """Adds one GTID. Raises ChangelogError (MALFORMED) if it is not a GTID of this database."""
        ...

    def add_all(self, head: str, numbers: Ints) -> None:
        """Adds several GTIDs. The text of each is `head` followed by one of the `numbers`."""
        ...

    def build(self) -> G_co:
        """Returns what the builder began with, and everything that was added. The builder can be used further."""
        ...


class Gtids(Protocol):
    """A set of transactions that were executed or received. The set is immutable, and false if it is empty."""

    @property
    def text(self) -> str:
        """The set as text, which both `parse_gtids` and the server can read. Equal sets have the same text."""
        ...

    def __bool__(self) -> bool: ...

    def contains(self, gtid: str) -> bool:
        """Returns whether a transaction is included. Raises ChangelogError (MALFORMED) if `gtid` is not a GTID."""
        ...

    def contains_any(self, head: str, numbers: Ints) -> bool:
        """Returns whether the set includes a transaction whose GTID is `head` followed by one of the `numbers`."""
        ...

    def missing(self, other: Self) -> Self:
        """Returns the transactions that `other` includes and this set lacks."""
        ...

    def is_subset(self, other: Self) -> bool:
        """Returns whether `other` includes all transactions of this set."""
        ...

    def builder(self) -> GtidsBuilder[Self]:
        """Returns a builder that begins with these transactions."""
        ...


def parse_gtids(flavour: Flavour, text: str) -> Gtids:
    """Parses a set of GTIDs as a server prints it, such as `@@gtid_executed` (MySQL) or `@@gtid_binlog_pos` (MariaDB).

    Raises ChangelogError (MALFORMED) with the offset of the character that does not fit.
    """
    return GtidPosition.parse(text) if flavour is Flavour.MARIADB else GtidSet.parse(text)
