"""Connects to the server, runs SQL there, asks for the binary log, and reads large results."""
