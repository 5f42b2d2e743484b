"""Derives deltas, and writes them to files or topics. A delta is a JSON Patch (RFC 6902) that says how a change altered
a row.
"""
