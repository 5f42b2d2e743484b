"""Renders answers about the changelog for people, on a terminal of any width. No program parses this."""
