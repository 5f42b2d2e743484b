"""Contains what all sources (readers of databases) share.

This package has no SQL, uses no database's client library, and knows nothing of a database's log positions.
"""
