"""Converts the rows of events: converts their values to text, and makes rows of the changelog from the text."""
