"""Tests `changelog schemas plan`, which says what a migration would do. The command tries the migration on a real
database, and rolls it back.
"""
