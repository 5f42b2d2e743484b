"""Blame: for each attribute of a row, down into nested json, the change that set it, and the value before that change.

The functions are pure. They read the changes of one key, in order, and nothing else.
"""

from changelog.envelope.blame.attributes import Attribute, Blame, Writer, column_of
from changelog.envelope.blame.fold import BlameFold

__all__ = ["Attribute", "Blame", "BlameFold", "Writer", "column_of"]
