"""Keeps views up to date in other stores: follows a changelog, and applies the new states of rows to a target."""
