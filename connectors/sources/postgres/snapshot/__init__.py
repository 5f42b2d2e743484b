"""Reads rows of tables in chunks, beside the stream."""
