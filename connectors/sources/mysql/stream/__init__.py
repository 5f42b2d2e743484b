"""Receives the stream of the binary log in a thread of its own."""
