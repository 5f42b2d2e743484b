"""Reads from the broker: the changelog, its checkpoint, and whether its topics are still the same ones."""
