"""The events of the binary log: bytes become frozen dataclasses."""
