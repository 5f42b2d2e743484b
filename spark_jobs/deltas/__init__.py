"""Deltas: the alterations of each change as an RFC 6902 patch, in files or topics."""
