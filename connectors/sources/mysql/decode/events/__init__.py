"""Decodes the bytes of the binary log's events into dataclasses."""
