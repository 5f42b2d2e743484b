"""Deltas: what each change altered, as RFC 6902 patches in files or topics."""
