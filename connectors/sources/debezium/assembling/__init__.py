"""Turns Debezium's events into rows of the changelog: orders them, groups them into transactions, and encodes them.

The package is pure: it does no I/O.
"""
