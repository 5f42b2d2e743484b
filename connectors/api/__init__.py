"""Implements `changelog.open`, the Python API: reads a changelog as Python objects and as Arrow tables."""
