"""Derives deltas and writes them to files or topics. A delta says, as an RFC 6902 patch, what a change altered in a
row.
"""
