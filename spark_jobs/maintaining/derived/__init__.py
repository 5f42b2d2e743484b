"""Keeps totals, sessions and documents up to date in PostgreSQL. They are derived from the rows of a view."""
