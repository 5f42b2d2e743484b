"""Reads rows of tables in chunks, while changes stream."""
