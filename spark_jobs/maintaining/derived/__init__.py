"""Keeps, in PostgreSQL, what is derived from the rows of a view: totals, sessions, and documents."""
