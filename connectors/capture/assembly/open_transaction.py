"""Defines the state of the transaction that the assembly is delivering."""

import msgspec

from changelog.connectors.capture.rows.row_records import Transaction
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp

ORDINALS_MAX = 1 << 31
"""The most rows and messages of one transaction.

They are numbered from 0, and a position stores twice the number in 32 bits.
"""


class OpenTransaction(msgspec.Struct, gc=False):
    """The transaction that is being delivered.

    A stamp says who makes the changes. `stamp` is the one in the transaction's last stamp message. Without such a
    message, `fallback` applies: the last stamp of `AssemblyRun.sign` or of a session's message. `ordinal` is the number
    of the next row or message in the transaction. If a part of the transaction was published already, `published` is
    the last part of the position of the last published record, and rows up to that record are dropped. Otherwise, it is
    -1.
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
