"""Rows that are read from tables: windows in the stream, keys that are looked up, repairs."""
