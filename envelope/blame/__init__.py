"""Finds out, for each attribute of a row, which change set it, and which value it had before. We call this *blame*.

An attribute is a column, or a single value inside a json column. The functions are pure: they get the changes of one
key, in order, and read nothing else.
"""

from changelog.envelope.blame.attributes import Attribute, Blame, Writer, column_of
from changelog.envelope.blame.fold import BlameFold

__all__ = ["Attribute", "Blame", "BlameFold", "Writer", "column_of"]
