"""Converts log sequence numbers (LSNs) between an integer, PostgreSQL's text, and the text that checkpoints store.

An LSN counts the bytes of PostgreSQL's write-ahead log. PostgreSQL prints it as two hexadecimal numbers without leading
zeros. LSNs in this form do not sort like the log: `9/0` comes before `10/0` in the log, but after it as text. Therefore
a checkpoint stores an LSN as 16 hexadecimal digits, which sort like the log. The commit part of a position is an LSN,
too, and is stored in the same form.
"""

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.position import commit_text


def lsn_text(lsn: int) -> str:
    """Returns an LSN as PostgreSQL prints it, such as `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Returns the LSN that PostgreSQL printed as `text`. Raises ValueError if `text` is not an LSN."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a log sequence number")
    return int(high, 16) << 32 | int(low, 16)


def through_text(lsn: int) -> str:
    """Returns an LSN as the `through` of a checkpoint."""
    return commit_text(lsn)


def parse_through(text: str) -> int:
    """Returns the LSN of a checkpoint's `through`. Raises ValueError if `text` is not hexadecimal."""
    return int(text, 16)


def through_lsn(checkpoint: Checkpoint) -> int:
    """Returns the LSN up to which a checkpoint of this source covers the log. A log record ends there."""
    return checkpoint.complete_before.commit
