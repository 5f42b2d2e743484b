"""Converts the values of change events to the JSON that we publish, by their semantic types."""
