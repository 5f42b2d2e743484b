"""Converts the rows of events: prints their values as text, and makes rows of the changelog from the text."""
