"""Translates Debezium's messages to events (such as a changed row), and encodes the rows for the changelog.

Everything here is pure: it does no I/O.
"""
