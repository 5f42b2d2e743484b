"""Log sequence numbers: as numbers, as PostgreSQL prints them, and as a checkpoint's `through`.

A log sequence number counts the bytes of the log. PostgreSQL prints two hexadecimal numbers of any width, which do not
sort: `9/0` is before `10/0`. In a checkpoint it therefore has the form of a position's commit, which is one too: 16
digits. Their order as text is the order of the log.
"""

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.position import commit_text


def lsn_text(lsn: int) -> str:
    """A log sequence number as PostgreSQL prints it, `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The log sequence number that `text` spells; ValueError when it spells none."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a log sequence number")
    return int(high, 16) << 32 | int(low, 16)


def through_text(lsn: int) -> str:
    """A log sequence number as the `through` of a checkpoint."""
    return commit_text(lsn)


def parse_through(text: str) -> int:
    """The log sequence number of a checkpoint's `through`; ValueError if it is none."""
    return int(text, 16)


def through_lsn(checkpoint: Checkpoint) -> int:
    """The log sequence number that a checkpoint of this source reaches: the end of a record."""
    return checkpoint.complete_before.commit
