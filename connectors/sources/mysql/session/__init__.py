"""Connections to the server: SQL, the stream of the binary log, and reading of large results."""
