"""Defines the state of the transaction that the assembly is delivering."""

import msgspec

from changelog.connectors.capture.rows.row_records import Transaction
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp

ORDINALS_MAX = 1 << 31
"""The most rows and messages of one transaction, because a position has 32 bits for twice the ordinal."""


class OpenTransaction(msgspec.Struct, gc=False):
    """The transaction that is being delivered.

    `stamp` is the stamp in the transaction's last stamp message. `fallback` is the stamp that applies if there was no
    such message. `ordinal` is the ordinal of the next row or message. `published` is the position ordinal of the
    transaction's last record that was published already, or -1; rows up to there are dropped.
    """

    transaction: Transaction
    stamp: Stamp | None = None
    fallback: Stamp | None = None
    ordinal: int = 0
    published: int = -1


def check_ordinal(ordinal: int) -> None:
    """Raises ChangelogError (LIMIT) if a transaction has more rows and messages than a position can count."""
    if ordinal > ORDINALS_MAX:
        raise ChangelogError(
            Kind.LIMIT, f"a transaction has more than {ORDINALS_MAX} changes", hint="a position cannot count more"
        )
