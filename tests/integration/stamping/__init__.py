"""Tests the trigger that stamps changes, and the adapters of `changelog_stamps` with their frameworks."""
