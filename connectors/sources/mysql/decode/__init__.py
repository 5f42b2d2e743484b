"""Decodes the binary log, without any I/O: it turns bytes into events, and events into rows of the changelog."""
