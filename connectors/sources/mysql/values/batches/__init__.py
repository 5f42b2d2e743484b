"""Converts the values of a column to text, for many rows together."""
