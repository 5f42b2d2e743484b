"""Stamps: the database's trigger, and the adapters of `changelog_stamps` with their frameworks."""
