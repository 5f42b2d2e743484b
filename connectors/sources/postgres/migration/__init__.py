"""Rehearses migrations: runs them on the live database or on an empty copy of it, and rolls them back."""
