"""Tests `changelog schemas plan`. The command tries a migration on a real database, rolls the migration back, and says
what it would do.
"""
