"""Implements the replication protocol, and the thread that receives the stream."""
