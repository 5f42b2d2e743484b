"""Reads tables while the binary log is streamed: ranges of keys, and the rows of requested keys."""
