"""Turns events into rows of the changelog: their order, their transactions, and their encoding. Pure."""
