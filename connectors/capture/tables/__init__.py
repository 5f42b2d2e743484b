"""Publishes rows that are read from tables: in windows of the stream, by looking up keys, and for repairs."""
