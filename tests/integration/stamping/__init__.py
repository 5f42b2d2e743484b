"""Tests that a trigger, or an adapter of `changelog_stamps`, gives changes a stamp. A stamp says who made a change."""
