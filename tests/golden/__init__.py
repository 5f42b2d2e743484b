"""Tests that SQL statements cause exactly the messages that follow them in the golden files (see README.md)."""
