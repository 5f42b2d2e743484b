"""Defines the state of the transaction that the assembly is delivering."""

import msgspec

from changelog.connectors.capture.rows.row_records import Transaction
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp

ORDINALS_MAX = 1 << 31
"""The most rows and messages of one transaction.

They are numbered from 0. The last part of a position has 32 bits, and holds the number times 2 (plus 1 for the second
record of a row that moved).
"""


class OpenTransaction(msgspec.Struct, gc=False):
    """The transaction that is being delivered.

    A stamp says who makes the changes. `stamp` is the one in the transaction's last stamp message. Without such a
    message, `fallback` applies: the stamp that was set last, by `AssemblyRun.sign` or by a message with the stamp of a
    session. `ordinal` is the number of the next row or message in the transaction. `published` is the position ordinal
    of the transaction's last published record: rows up to that record are dropped. It is -1 if nothing of the
    transaction was published, and greater than every position ordinal if all of it was.
    """

    transaction: Transaction
    stamp: Stamp | None = None
    fallback: Stamp | None = None
    ordinal: int = 0
    published: int = -1

    @property
    def next_stamp(self) -> Stamp | None:
        """The stamp of the next row."""
        return self.stamp or self.fallback


def check_ordinal(ordinal: int) -> None:
    """Raises ChangelogError (LIMIT) if a transaction has more rows and messages than a position can count."""
    if ordinal > ORDINALS_MAX:
        raise ChangelogError(
            Kind.LIMIT, f"a transaction has more than {ORDINALS_MAX} changes", hint="a position cannot count more"
        )
