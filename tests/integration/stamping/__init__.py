"""Tests how changes get stamps, which say who made them: from a trigger, or from an adapter of `changelog_stamps`."""
