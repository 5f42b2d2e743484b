"""Turns events into rows of the changelog: their order, transactions and encoding. The package is pure."""
