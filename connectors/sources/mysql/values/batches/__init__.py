"""Prints the values of a column for many rows together."""
