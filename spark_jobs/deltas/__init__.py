"""Deltas: what each change altered, as files or as topics."""
