"""Columns of many rows: their values are printed together."""
